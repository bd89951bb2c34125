// Allocates while it is being loaded, before dlopen returns and before anybody outside could have touched its call
// slots.
#include <stdlib.h>

static void* kept;

__attribute__((constructor)) static void allocate_at_load(void) { kept = malloc(2000003); }
__attribute__((destructor)) static void free_at_unload(void) { free(kept); }

void* take_after_load(size_t size) { return malloc(size); }
