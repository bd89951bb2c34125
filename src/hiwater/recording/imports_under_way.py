"""Whether our code, which runs between two instructions of the program, may import modules now.

During an import of the program, an incomplete module is in `sys.modules`. In the same thread, a second import returns
this incomplete module. If another thread imports it, a second import waits for that thread, and the program waits with
it. And a loop of the program over `sys.modules` ends with an error if an import adds a module meanwhile.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_OURS = ("hiwater", "pynvml")
_NONE: dict[str, object] = {}
_LOOPS = tuple(type(iter(view)) for view in (_NONE.keys(), _NONE.values(), _NONE.items()))


def is_import_under_way(libraries: Collection[str]) -> bool:
    """Whether a module that ours may need is incomplete: of the standard library, of hiwater, or of these libraries.
    The program's modules do not count, because the program may run inside an import of one until it ends."""
    for name, module in tuple(sys.modules.items()):
        # No getattr on the module: some modules create or import their attributes on access.
        spec = getattr(module, "__dict__", _NONE).get("__spec__")
        if spec is not None and getattr(spec, "_initializing", False):
            top = name.partition(".")[0]
            if top in _OURS or top in libraries or top in sys.stdlib_module_names:
                return True
    return False


def is_loop_under_way() -> bool:
    """Whether a loop over `sys.modules` is under way, in any thread. Takes some 10 ms for a million objects."""
    return any(isinstance(one, _LOOPS) for one in gc.get_referrers(sys.modules))
