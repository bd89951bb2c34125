// What the recorder asks of the system: `raw` has calls by their own names, `platform` has what systems do differently.
// One of two files defines both. No other code that the two engines share depends on the system.
#pragma once

#if defined(HIWATER_POSIX)
#include "base/platform/posix.h"
#else
#include "base/platform/linux.h"
#endif
