"""Finds: malloc_trim."""

import ctypes


def main():
    pages = [bytes(5000) for _ in range(8_000)]  # HERE
    #: pages = [bytes(5000) for _ in range(8_000)]
    return pages[::400]


kept = main()
#: ctypes.CDLL("libc.so.6").malloc_trim(0)
print(len(kept), ctypes.sizeof(ctypes.c_int))
