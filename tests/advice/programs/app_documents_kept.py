"""Finds: malloc_trim."""

import ctypes


class Index:
    """The title pages of documents."""

    def __init__(self):
        self.titles = []

    def build(self, count):
        pages = [bytes(6_000) for _ in range(count)]  # HERE
        #: pages = [bytes(6_000) for _ in range(count)]
        self.titles = pages[::300]


index = Index()
index.build(7_000)
#: ctypes.CDLL("libc.so.6").malloc_trim(0)
print(len(index.titles), ctypes.sizeof(ctypes.c_long))
