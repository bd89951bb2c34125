// Stands for a file system that cannot map files to be written, for every file. To be preloaded.
#include <sys/mman.h>

#include "refused_calls.h"

__attribute__((constructor)) static void refuse(void) {
    struct sock_filter rules[] = {
        LOAD(nr),
        UNLESS(SYS_mmap, 7),
        LOAD(args[2]),
        MASK(PROT_WRITE),
        UNLESS(PROT_WRITE, 4),
        LOAD(args[3]),
        MASK(MAP_SHARED | MAP_ANONYMOUS),
        UNLESS(MAP_SHARED, 1),
        REFUSE(ENODEV),
        ALLOW,
    };
    put_in_force(rules, sizeof rules);
}
