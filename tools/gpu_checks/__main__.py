"""`python tools/gpu_checks NAME RESULT` runs one check in this process and writes RESULT, a JSON file, beside what
the check leaves."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_checks import CHECKS
from gpu_checks.beginnings import initialise
from gpu_checks.registry import HELPERS, IN_PLACE, Result

CONFIGURATIONS = {"cudaMallocAsync": "backend:cudaMallocAsync", "expandable": "expandable_segments:True"}
# The driver's own functions, as RMM's allocators use the runtime's: no headers are needed to compile it. Unlike the
# runtime's they make no context.
PLUGGABLE = """
#include <dlfcn.h>
#include <stddef.h>
typedef unsigned long long Address;
static void* find(const char* name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), name); }
void* take(ptrdiff_t size, int device, void* stream) {
    Address at = 0;
    void* context = 0;
    ((int (*)(void**))find("cuCtxGetCurrent"))(&context);
    if (!context && !((int (*)(void**, int))find("cuDevicePrimaryCtxRetain"))(&context, device))
        ((int (*)(void*))find("cuCtxSetCurrent"))(context);
    ((int (*)(Address*, size_t))find("cuMemAlloc_v2"))(&at, (size_t)size);
    return (void*)at;
}
void give(void* at, ptrdiff_t size, int device, void* stream) { ((int (*)(Address))find("cuMemFree_v2"))((Address)at); }
"""


def put_backend(backend: str, *, double: bool) -> None:
    """Have torch allocate with `backend`, before CUDA is initialised."""
    if double:
        sys.path.insert(0, str(HELPERS))
        from cuda_double import install

        is_expandable = backend == "expandable"
        IN_PLACE.append(install(backend="native" if is_expandable else backend, expandable=is_expandable))
    elif backend in CONFIGURATIONS:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = CONFIGURATIONS[backend]
    elif backend == "pluggable":
        import torch

        folder = Path(tempfile.mkdtemp())
        (folder / "plugged.c").write_text(PLUGGABLE)
        words = ["cc", "-shared", "-fPIC", folder / "plugged.c", "-o", folder / "plugged.so", "-ldl"]
        subprocess.run(words, check=True)
        plugged = torch.cuda.memory.CUDAPluggableAllocator(str(folder / "plugged.so"), "take", "give")
        torch.cuda.memory.change_current_allocator(plugged)


def main() -> int:
    """Run one check."""
    parser = argparse.ArgumentParser(description="Runs one check of what hiwater does with a GPU.")
    parser.add_argument("name", nargs="?", choices=list(CHECKS), default="init")
    parser.add_argument("result", nargs="?", type=Path, help="the JSON file to write")
    parser.add_argument("--initialise", type=int, metavar="NUMBER", help="one initialisation of the first check")
    parser.add_argument("--double", action="store_true", help="over the simulated torch._C, without a card")
    arguments = parser.parse_args()
    chosen = CHECKS[arguments.name]
    if arguments.double and chosen.in_programs:
        IN_PLACE.append(None)
    else:
        put_backend(chosen.backend, double=arguments.double)
    if arguments.initialise is not None:
        return initialise(arguments.initialise)
    folder = arguments.result.resolve().parent
    found = chosen.run(folder)
    last = Result(False)
    for last in [found] if isinstance(found, Result) else found:
        whole = arguments.result.with_suffix(".part")
        whole.write_text(json.dumps(vars(last), default=str))
        whole.replace(arguments.result)
    return 0 if last.held in (True, None) else 1


if __name__ == "__main__":
    sys.exit(main())
