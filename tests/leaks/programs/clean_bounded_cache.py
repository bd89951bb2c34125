"""A cache that forgets its oldest value when it is full."""

from collections import OrderedDict

from noise import VALUES, text, work

_CACHE: OrderedDict[int, str] = OrderedDict()
_made = 0


def call() -> None:
    global _made
    work()
    for _ in range(VALUES):
        _made += 1
        _CACHE[_made] = text()
        if len(_CACHE) > 6 * VALUES:
            _CACHE.popitem(last=False)
