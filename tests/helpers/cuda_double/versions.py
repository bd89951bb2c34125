"""The versions of torch's Python layer that tests run with."""

import pytest

from .layer import OLDEST, folder_of

FETCH = f"the files of torch {OLDEST} are not here: python tests/helpers/cuda_double/fetch.py"
VERSIONS = [
    "installed",
    pytest.param(OLDEST, marks=pytest.mark.skipif(folder_of(OLDEST) is None, reason=FETCH)),
]
"""For `pytest.mark.parametrize("version", VERSIONS)`."""
