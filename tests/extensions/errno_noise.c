// Preloaded: system calls that a library may make on its own account leave another errno, though they succeed, as POSIX
// lets them. A hooked function that makes one and does not put errno back shows it to the program.
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    errno = result < 0 && result > -4096 ? (int)-result : EXDEV;
    return result < 0 && result > -4096 ? -1 : result;
}

long syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    const long a = va_arg(arguments, long), b = va_arg(arguments, long), c = va_arg(arguments, long);
    const long d = va_arg(arguments, long), e = va_arg(arguments, long), f = va_arg(arguments, long);
    va_end(arguments);
    return raw(number, a, b, c, d, e, f);
}

int madvise(void* at, size_t bytes, int advice) {
    return (int)raw(SYS_madvise, (long)at, (long)bytes, advice, 0, 0, 0);
}
int sched_yield(void) { return (int)raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0); }
