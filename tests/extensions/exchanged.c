// Exchanges the call slots of one library, as tools do that track memory or files, and counts the calls that come by
// them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char* const names[] = {"mmap",      "mmap64", "munmap",          "mremap", "mprotect", "madvise",
                                    "mincore",   "open",   "open64",          "openat", "close",    "read",
                                    "write",     "pread",  "pread64",         "pwrite", "lseek",    "fstat",
                                    "ftruncate", "fcntl",  "process_vm_readv"};
enum { kNames = sizeof names / sizeof names[0] };
static void* real[kNames];
static long calls[kNames];

typedef long (*Call)(long, long, long, long, long, long);
#define COUNTED(N)                                                            \
    static long counted_##N(long a, long b, long c, long d, long e, long f) { \
        __atomic_fetch_add(&calls[N], 1, __ATOMIC_RELAXED);                   \
        return ((Call)real[N])(a, b, c, d, e, f);                             \
    }
// clang-format off
COUNTED(0) COUNTED(1) COUNTED(2) COUNTED(3) COUNTED(4) COUNTED(5) COUNTED(6) COUNTED(7) COUNTED(8) COUNTED(9) COUNTED(10)
COUNTED(11) COUNTED(12) COUNTED(13) COUNTED(14) COUNTED(15) COUNTED(16) COUNTED(17) COUNTED(18) COUNTED(19) COUNTED(20)
    // clang-format on
    static const Call counted[kNames] = {counted_0,  counted_1,  counted_2,  counted_3,  counted_4,  counted_5,
                                         counted_6,  counted_7,  counted_8,  counted_9,  counted_10, counted_11,
                                         counted_12, counted_13, counted_14, counted_15, counted_16, counted_17,
                                         counted_18, counted_19, counted_20};

static int exchanged = 0;

static void exchange(uintptr_t base, const ElfW(Rela) * row, size_t bytes, const ElfW(Sym) * symbols,
                     const char* strings) {
    for (size_t i = 0; i < bytes / sizeof *row; ++i) {
        const char* name = strings + symbols[ELF64_R_SYM(row[i].r_info)].st_name;
        for (int n = 0; n < kNames; ++n) {
            if (strcmp(name, names[n]) != 0) continue;
            void** slot = (void**)(base + row[i].r_offset);
            void* page = (void*)((uintptr_t)slot & ~(uintptr_t)4095);
            if (mprotect(page, 8192, PROT_READ | PROT_WRITE) != 0) abort();
            real[n] = *slot;
            *slot = (void*)counted[n];
            ++exchanged;
        }
    }
}

static int look(struct dl_phdr_info* module, size_t size, void* wanted) {
    (void)size;
    if (strstr(module->dlpi_name, (const char*)wanted) == NULL) return 0;
    const ElfW(Dyn)* dynamic = NULL;
    for (int i = 0; i < module->dlpi_phnum; ++i)
        if (module->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn)*)(module->dlpi_addr + module->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym)* symbols = NULL;
    const char* strings = NULL;
    const ElfW(Rela)* rows = NULL, *jumps = NULL;
    size_t row_bytes = 0, jump_bytes = 0;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        if (dynamic->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym)*)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_STRTAB) strings = (const char*)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_RELA) rows = (const ElfW(Rela)*)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_RELASZ) row_bytes = dynamic->d_un.d_val;
        if (dynamic->d_tag == DT_JMPREL) jumps = (const ElfW(Rela)*)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_PLTRELSZ) jump_bytes = dynamic->d_un.d_val;
    }
    exchange(module->dlpi_addr, rows, row_bytes, symbols, strings);
    exchange(module->dlpi_addr, jumps, jump_bytes, symbols, strings);
    return 0;
}

// Returns how many slots of the library were exchanged.
int exchange_slots_of(const char* library) {
    dl_iterate_phdr(look, (void*)library);
    return exchanged;
}

long calls_so_far(void) {
    long sum = 0;
    for (int n = 0; n < kNames; ++n) sum += calls[n];
    return sum;
}
