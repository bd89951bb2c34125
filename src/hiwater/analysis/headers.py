"""Which growth belongs to another leak: headers of the objects that it keeps, which count for lines of their own.

CPython keeps the memory of freed lists, dicts, tuples and floats in free lists, and gives it to the next such object.
No allocator is called, so the block counts for the line that allocated it, however many objects have had it since. A
leak of lists takes one block after the other from these free lists, and lines that need lists for a moment only
allocate them anew: their blocks grow as the leak does, and nothing is to be changed there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hiwater.analysis.holders import AccountsSearch
from hiwater.capture.paths import Ints

_TYPES = frozenset({"list", "dict", "tuple", "float"})
_SIZES = frozenset({24, *range(48, 201, 8)})
"""Of blocks of these types: a float; a list, a dict and tuples of one to twenty items, with what the garbage
collector needs."""
_IN_STEP = 0.1
"""By how much of the whole growth two curves may differ at any snapshot."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Accounts that grow together: bytes for each moment, live bytes at each snapshot, kinds of memory, the blocks
    at the last snapshot (0: not known), and the types of the objects, as far as there is a search for holders."""

    accounts: Ints
    bytes_per_moment: float
    series: Ints
    kinds: tuple[str, ...]
    blocks: int
    types: tuple[str, ...]

    @property
    def may_be_headers(self) -> bool:
        """Whether all blocks are such as free lists have."""
        if self.kinds != ("python",) or not _TYPES.issuperset(self.types):
            return False
        return self.blocks == 0 or divmod(int(self.series[-1]), self.blocks) in {(size, 0) for size in _SIZES}


def leak_of_headers(grown: Grown, others: Iterable[Grown], search: AccountsSearch | None) -> Grown | None:
    """Of which of these others the headers have grown here: the largest of those that grow in step, by as much or
    more, and, if there is a search for holders, have blocks in these objects. None if this is a leak of its own."""
    if not grown.may_be_headers:
        return None
    found = [
        other
        for other in others
        if not other.may_be_headers
        and other.bytes_per_moment >= grown.bytes_per_moment
        and other.blocks >= grown.blocks
        and _are_in_step(grown.series, other.series)
        and (search is None or search.are_parts(other.accounts, grown.accounts))
    ]
    return max(found, key=lambda other: other.bytes_per_moment, default=None)


def _are_in_step(one: Ints, other: Ints) -> bool:
    curves = [(series - series[0]) / max(1, series[-1] - series[0]) for series in (one, other)]
    return bool(np.abs(curves[0] - curves[1]).max() <= _IN_STEP)
