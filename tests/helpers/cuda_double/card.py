"""What the driver knows of a card: its memory, who holds it, and addresses (`cudaMalloc`, `cudaFree`,
`cudaMemGetInfo`, `cuMemCreate`)."""

import itertools

from driver_double import uuid_of

_PAGE = 2 << 20
_addresses = itertools.count(0x7F00_0000_0000, 1 << 40)


class Card:
    """One card. `total_bytes` is its memory, `others_bytes` what other processes hold, `context_bytes` what a context
    takes.

    `mapped_bytes` is what this process took from the driver.
    """

    def __init__(self, number, total_bytes=80 << 30, others_bytes=0, context_bytes=0):
        self.number = number
        self.name = f"Double {number}"
        self.uuid = uuid_of(number, "")
        self.total_bytes = total_bytes
        self.others_bytes = others_bytes
        self.context_bytes = context_bytes
        self.has_context = False
        self.mapped_bytes = 0
        self._next = next(_addresses)

    @property
    def free_bytes(self):
        """What `cudaMemGetInfo` says is free."""
        context = self.context_bytes if self.has_context else 0
        return max(0, self.total_bytes - self.others_bytes - context - self.mapped_bytes)

    def take(self, size):
        """Take memory; whether there was enough (`cudaMalloc`, `cuMemCreate`)."""
        self.has_context = True
        if size > self.free_bytes:
            return False
        self.mapped_bytes += size
        return True

    def give(self, size):
        """Give memory back (`cudaFree`, `cuMemRelease`)."""
        self.mapped_bytes -= size

    def reserve_addresses(self, size):
        """The address of a range that nothing else has (`cuMemAddressReserve`)."""
        address = self._next
        self._next += -(-size // _PAGE) * _PAGE
        return address
