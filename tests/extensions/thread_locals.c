// So many variables of each thread's own that a small stack has no room beside them.
#include <string.h>

static __thread char many[400000];

__attribute__((constructor)) static void touch(void) { memset(many, 1, sizeof many); }
