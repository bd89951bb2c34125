"""Blocks, the pools in which free ones wait, and expandable segments: `c10/cuda/CUDACachingAllocator.cpp`."""


class PrivatePool:
    """`PrivatePool`: the memory of a CUDA graph or a `MemPool`, which nobody else may use."""

    def __init__(self, identity):
        self.id = identity
        self.use_count = 1
        self.small, self.large = Pool(True, self), Pool(False, self)


class Pool:
    """`BlockPool`: free blocks of one kind, and unmapped ones of expandable segments."""

    def __init__(self, is_small, private=None):
        self.is_small = is_small
        self.private = private
        self.blocks = []
        self.unmapped = []

    def best_fit(self, stream, size):
        """The smallest free block of the stream that is large enough; the lowest address among equals."""
        fits = [block for block in self.blocks if block.stream == stream and block.size >= size]
        return min(fits, key=lambda block: (block.size, block.address)) if fits else None


class Block:
    """`Block`: a piece of a segment. Neighbours are linked; `requested_size` is not cleared when the block is freed."""

    def __init__(self, address, size, stream, pool):
        self.address, self.size, self.stream, self.pool = address, size, stream, pool
        self.requested_size = 0
        self.allocated = False
        self.mapped = True
        self.previous = self.next = None
        self.stream_uses = set()
        self.event_count = 0
        self.context = self.segment_context = None
        self.segment = None  # its ExpandableSegment

    @property
    def is_split(self):
        return self.previous is not None or self.next is not None

    def put_between(self, previous, following):
        """`splice`."""
        self.previous, self.next = previous, following
        if previous is not None:
            previous.next = self
        if following is not None:
            following.previous = self

    def split_head(self, size):
        """A new block of the first `size` bytes; this one is what remains, and keeps its stale `requested_size`."""
        head = Block(self.address, size, self.stream, self.pool)
        head.segment, head.mapped = self.segment, self.mapped
        head.put_between(self.previous, self)
        self.address += size
        self.size -= size
        return head

    def first(self):
        """The first block of the segment."""
        block = self
        while block.previous is not None:
            block = block.previous
        return block


class ExpandableSegment:
    """`ExpandableSegment`: a range of addresses into which pages of one size are mapped as they are needed."""

    def __init__(self, address, size, page):
        self.address, self.size, self.page = address, size, page

    def whole_pages(self, address, size, *, outwards):
        """The range of whole pages around (`outwards`) or inside a range: (address, size), size 0 for none."""
        before, after = address - self.address, address + size - self.address
        if outwards:
            before, after = before // self.page * self.page, -(-after // self.page) * self.page
        else:
            before, after = -(-before // self.page) * self.page, after // self.page * self.page
        return self.address + before, max(0, after - before)
