// What the recorder asks of the system: `raw` are calls by their own names, `platform` is all that systems do
// differently. One of the two files beside each other has it, and nothing else that both recorders share names a
// system.
#pragma once

#if defined(HIWATER_POSIX)
#include "base/platform/posix.h"
#else
#include "base/platform/linux.h"
#endif
