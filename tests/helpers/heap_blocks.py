"""Calls of the heap's functions, one a line, and the blocks that each line keeps: for a program's `main()` that has
`heap`."""

CALLS = """
    global kept
    kept = [
        heap.take_malloc(1_000_003),  # @malloc
        heap.take_calloc(1_009, 1_013),  # @calloc
        heap.take_realloc(0, 1_000_033),  # @realloc
        heap.take_realloc(heap.take_malloc(555), 1_000_041),  # @grown_by_realloc
        heap.take_reallocarray(0, 1_019, 1_021),  # @reallocarray
        heap.take_posix_memalign(64, 1_000_037),  # @posix_memalign
        heap.take_aligned_alloc(64, 64 * 15_629),  # @aligned_alloc
        heap.take_memalign(32, 1_000_039),  # @memalign
        heap.take_valloc(1_000_081),  # @valloc
    ]
    for _ in range(1_000):
        heap.take_malloc(100)  # @loop
    chain = heap.take_chain(5_000, 24)  # @chain
    heap.give_back(heap.take_malloc(777_777))  # @gone
"""
BLOCKS = {
    "malloc": (1_000_003, 1),
    "calloc": (1_009 * 1_013, 1),
    "realloc": (1_000_033, 1),
    "grown_by_realloc": (1_000_041, 1),
    "reallocarray": (1_019 * 1_021, 1),
    "posix_memalign": (1_000_037, 1),
    "aligned_alloc": (64 * 15_629, 1),
    "memalign": (1_000_039, 1),
    "valloc": (1_000_081, 1),
    "loop": (100_000, 1_000),
    "chain": (120_000, 5_000),
}
"""For each line its bytes and its number of blocks, which are live at the peak and at the end."""
