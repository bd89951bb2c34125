// A program that filters its own system calls: `filter(how, action)` installs a filter for the whole process that
// answers membarrier with `action` (SECCOMP_RET_…) and lets all else pass; `refuse(number)` one that refuses that call,
// `older_kernel()` one that answers as an older kernel does. They return 0, or an errno value.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BY_PRCTL = 0, BY_SYSCALL = 1, BY_ITSELF = 2 };

// As a sandbox does that calls no function of the C library.
static long call_kernel(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static int install(int how, struct sock_filter* program, unsigned short length) {
    const struct sock_fprog whole = {length, program};
    const unsigned flags = SECCOMP_FILTER_FLAG_TSYNC;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    if (how == BY_PRCTL) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole, 0, 0) == 0 ? 0 : errno;
    if (how == BY_SYSCALL) return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &whole) == 0 ? 0 : errno;
    return (int)-call_kernel(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)&whole);
}

static int filter_call(int how, unsigned number, unsigned action) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return install(how, program, sizeof program / sizeof program[0]);
}

int filter(int how, unsigned action) { return filter_call(how, SYS_membarrier, action); }

// The process ends when a thread asks which signals are pending.
int forbid_pending(void) { return filter_call(BY_PRCTL, SYS_rt_sigpending, SECCOMP_RET_KILL_PROCESS); }

int refuse(unsigned number) { return filter_call(BY_PRCTL, number, SECCOMP_RET_ERRNO | EPERM); }

// Linux 4.18 does not know of them; what is used here is PAGEMAP_SCAN (6.7), MADV_POPULATE_… (5.14), close_range (5.9),
// MREMAP_DONTUNMAP (5.7), openat2 (5.6), pidfd_open and clone3 (5.3).
int older_kernel(void) {
    enum { PAGEMAP_SCAN_ = 0xC0606610, MADVISE_POPULATE_READ = 22, MADVISE_POPULATE_WRITE = 23, DONTUNMAP = 4 };
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 14, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 13, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 12, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 5, 7),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),  // the low half, as below
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PAGEMAP_SCAN_, 7, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADVISE_POPULATE_READ, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADVISE_POPULATE_WRITE, 5, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, DONTUNMAP, 3, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
    };
    return install(BY_PRCTL, program, sizeof program / sizeof program[0]);
}

// The kernel refuses it: the filter is none.
int filter_in_vain(void) {
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1u << 30, NULL) == -1 && errno == EINVAL ? 0 : 1;
}
