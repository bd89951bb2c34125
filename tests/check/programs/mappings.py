"""Memory below malloc: anonymous mappings that are written to, one of them unmapped before the end."""

import mmap

first, second = mmap.mmap(-1, 4 << 20), mmap.mmap(-1, 6 << 20)
for mapping in (first, second):
    for start in range(0, len(mapping), mmap.PAGESIZE):
        mapping[start] = 1
first.close()
print(len(second))
