"""Finds: nothing."""

import ctypes


def main():
    pages = [bytes(5000) for _ in range(8_000)]
    return len(pages)


main()
ctypes.CDLL("libc.so.6").malloc_trim(0)
