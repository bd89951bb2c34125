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

// One request of a call, by the lower half of an argument.
static int refuse_request(unsigned number, unsigned argument, unsigned value, unsigned error) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * argument),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return install(BY_PRCTL, program, sizeof program / sizeof program[0]);
}

// What Linux 4.18 does not know, of what hiwater and the C library use. Filters add up.
int older_kernel(void) {
    static const unsigned later[] = {SYS_clone3, SYS_pidfd_open, SYS_openat2, SYS_close_range};
    static const struct {
        unsigned number, argument, value, error;
    } requests[] = {
        {SYS_ioctl, 1, 0xC0606610, ENOTTY},                                      // PAGEMAP_SCAN, 6.7
        {SYS_madvise, 2, 22, EINVAL},       {SYS_madvise, 2, 23, EINVAL},        // MADV_POPULATE_READ and _WRITE, 5.14
        {SYS_mremap, 3, 1 | 4, EINVAL},     {SYS_mremap, 3, 1 | 2 | 4, EINVAL},  // MREMAP_DONTUNMAP, 5.7
    };
    int error = 0;
    for (size_t i = 0; i < sizeof later / sizeof later[0] && error == 0; ++i)
        error = filter_call(BY_PRCTL, later[i], SECCOMP_RET_ERRNO | ENOSYS);
    for (size_t i = 0; i < sizeof requests / sizeof requests[0] && error == 0; ++i)
        error = refuse_request(requests[i].number, requests[i].argument, requests[i].value, requests[i].error);
    return error;
}

// The kernel refuses it: the filter is none.
int filter_in_vain(void) {
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1u << 30, NULL) == -1 && errno == EINVAL ? 0 : 1;
}
