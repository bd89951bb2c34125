"""Whether our code, which runs between two instructions of the program, may import modules now.

During an import of the program, an incomplete module is in `sys.modules`. In the same thread, a second import returns
this incomplete module. If another thread imports it, a second import waits for that thread, and the program waits with
it. A loop of the program over `sys.modules` ends with an error if an import adds a module meanwhile. And before 3.12.1,
an import that comes while the program takes the lock of another one ends that with a KeyError: importlib notes what a
thread waits for in one place a thread (CPython's gh-106176).

`hiwater attach` has a process execute the text of this file before anything of hiwater is imported there. So it imports
only what every interpreter has in `sys.modules` from its start; `__future__` and `gc` are not.
"""

import _imp
import sys
from _frozen_importlib import BuiltinImporter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

_OURS = ("hiwater", "pynvml")
_LOCK = ("acquire", "<frozen importlib._bootstrap>")
_MOST_FRAMES = 1_000  # to take a lock needs three; the others are those of a destructor or handler that came meanwhile
_NONE: "dict[str, object]" = {}
_LOOPS = tuple(type(way(view)) for way in (iter, reversed) for view in (_NONE.keys(), _NONE.values(), _NONE.items()))


def may_import() -> bool:
    """Whether none of this is under way now."""
    return not is_import_under_way(()) and not is_loop_under_way()


def is_import_under_way(libraries: "Collection[str]") -> bool:
    """Whether this thread takes the lock of an import, or a module that ours may need is incomplete: of the standard
    library, of hiwater, or of these libraries. The program's modules do not count, because the program may run inside
    an import of one until it ends."""
    if _takes_lock():
        return True
    for name, module in tuple(sys.modules.items()):
        # No getattr on the module: some modules create or import their attributes on access.
        spec = getattr(module, "__dict__", _NONE).get("__spec__")
        if spec is not None and getattr(spec, "_initializing", False):
            top = name.partition(".")[0]
            if top in _OURS or top in libraries or top in sys.stdlib_module_names:
                return True
    return False


def _takes_lock() -> bool:
    frame = sys._getframe()
    for _ in range(_MOST_FRAMES):
        if (frame.f_code.co_name, frame.f_code.co_filename) == _LOCK:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def is_loop_under_way() -> bool:
    """Whether a loop over `sys.modules` is under way, in any thread. Takes some 10 ms for a million objects."""
    return any(isinstance(one, _LOOPS) for one in _garbage_collector().get_referrers(sys.modules))


def _garbage_collector() -> "ModuleType":
    """The module `gc`, without adding it to `sys.modules`."""
    if "gc" in sys.modules:
        return sys.modules["gc"]
    spec = BuiltinImporter.find_spec("gc")
    assert spec is not None
    module: ModuleType = _imp.create_builtin(spec)
    _imp.exec_builtin(module)
    return module
