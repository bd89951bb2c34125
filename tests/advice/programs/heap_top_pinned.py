"""Finds: malloc_trim."""

import ctypes


def work(count):
    parts = [bytes(6_000) for _ in range(count)]  # HERE
    #: parts = [bytes(6_000) for _ in range(count)]
    last = bytes(6_000)
    return last, len(parts)


kept, count = work(6_000)
#: ctypes.CDLL("libc.so.6").malloc_trim(0)
print(count, ctypes.sizeof(ctypes.c_int))
