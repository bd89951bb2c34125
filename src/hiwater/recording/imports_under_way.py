"""Whether code of ours that comes between two instructions of the program's may import what it needs.

An import that the program is in the middle of has left a module half-way in `sys.modules`. In the same thread, importing it again gives
just that half, without a wait; and a wait for one that another thread imports is a wait of the program's.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_OURS = ("hiwater", "pynvml")
_NONE: dict[str, object] = {}


def is_import_under_way(libraries: Collection[str]) -> bool:
    """Whether a module is half-way that one of ours may need: of the standard library, of hiwater, or of these libraries. The program's
    own do not count, as it may run in one of them to its end."""
    for name, module in tuple(sys.modules.items()):
        # No getattr on the module: some make their attributes, or import them, when asked.
        spec = getattr(module, "__dict__", _NONE).get("__spec__")
        if spec is not None and getattr(spec, "_initializing", False):
            top = name.partition(".")[0]
            if top in _OURS or top in libraries or top in sys.stdlib_module_names:
                return True
    return False
