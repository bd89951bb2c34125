"""The real Python layer of `torch.cuda`, made anew from its files, over what is in `torch._C` now.

Newest: the files of the torch that is installed. Oldest: those of torch 2.2.2's wheel, which `python
tests/helpers/cuda_double/fetch.py` puts into `build/torch-layers/2.2.2` (its native part, 750 MB, is not needed). They
are run over the installed torch's other modules.
"""

import importlib.util
import os
import sys
import warnings
from pathlib import Path

from places import ROOT

OLDEST = "2.2.2"
FETCHED = Path(os.environ.get("HIWATER_TORCH_LAYERS") or ROOT / "build" / "torch-layers")


def folder_of(version):
    """Where the files of `torch/cuda` are: of the installed torch for "installed". None where they were not fetched."""
    if version == "installed":
        return Path(importlib.util.find_spec("torch").origin).parent / "cuda"
    folder = FETCHED / version / "torch" / "cuda"
    return folder if (folder / "__init__.py").exists() else None


def loaded_modules():
    """`torch.cuda` and what is below it, as it stands in `sys.modules`."""
    return {
        name: module for name, module in sys.modules.items() if name == "torch.cuda" or name.startswith("torch.cuda.")
    }


def put(torch, modules):
    """Have these be `torch.cuda` and what is below it, and nothing else."""
    for name in loaded_modules():
        del sys.modules[name]
    sys.modules.update(modules)
    torch.cuda = modules["torch.cuda"]


def load(torch, folder):
    """Run the layer's files; `torch.cuda` is then not initialised, with the calls in its queue that torch itself
    puts there."""
    spec = importlib.util.spec_from_file_location(
        "torch.cuda", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    put(torch, {"torch.cuda": module})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what an old layer uses that newer modules have renamed
        spec.loader.exec_module(module)
    return module
