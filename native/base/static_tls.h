// A thread's own variables at a fixed distance from its thread pointer, which are read without a call. glibc has room
// for some of them in libraries that are loaded later; musl has none, and loads no such library. There,
// __tls_get_addr() is called, which allocates nothing and takes no lock: musl makes the variables when it loads a
// library or starts a thread.
#pragma once

#include <limits.h>  // defines __GLIBC__

#if defined(__GLIBC__)
#define HIWATER_STATIC_TLS [[gnu::tls_model("initial-exec")]]
#else
#define HIWATER_STATIC_TLS
#endif
