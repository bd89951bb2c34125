// System calls that the kernel itself refuses from now on in this process: the recorder calls no function that another
// library could stand in for.
#pragma once

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

// For rules of an array of struct sock_filter. `SKIPPED` are the rules to leave out.
#define LOAD(FIELD) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, FIELD))  // its lower half
#define MASK(BITS) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, BITS)
#define UNLESS(VALUE, SKIPPED) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, VALUE, 0, SKIPPED)
#define IF_MORE(VALUE, SKIPPED) BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, VALUE, SKIPPED, 0)
#define REFUSE(ERROR) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (ERROR))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void put_in_force(struct sock_filter* rules, size_t bytes) {
    const struct sock_fprog program = {bytes / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        abort();
}
