"""What other languages than C and Python allocate with."""

from pathlib import Path

import pytest

import compiled
from recording import needs_engine, record

pytestmark = needs_engine


def test_cplusplus(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        objects = signatures.load("objects")
        def before():
            objects.refused_new()  # a runtime may keep something of the first exception it ever throws
        def main():
            objects.take_new(1_000_003)  # @new
            objects.take_new_array(1_000_033)  # @array
            objects.take_new_nothrow(1_000_037)  # @nothrow
            objects.take_new_aligned(15_629)  # @aligned
            objects.take_vector(1_000_039)  # @vector
            assert objects.refused_new() == 1  # @refused
            objects.give_back_new(objects.take_new(500_009))  # @new_gone
            objects.give_back_new_array(objects.take_new_array(500_009))  # @array_gone
            objects.give_back_new_aligned(objects.take_new_aligned(1_000))  # @aligned_gone
            objects.give_back_vector(objects.take_vector(500_009))  # @vector_gone
            print(objects.vector_header_bytes())
        """,
        libraries=["objects"],
    )
    header = int(recorded.stdout)
    expected = {
        "new": (1_000_003, 1), "array": (1_000_033, 1), "nothrow": (1_000_037, 1), "aligned": (64 * 15_629, 1),
        "vector": (1_000_039 + header, 2), "refused": (0, 0),
        "new_gone": (0, 0), "array_gone": (0, 0), "aligned_gone": (0, 0), "vector_gone": (0, 0),
    }  # fmt: skip
    found = {name: (recorded.held(name, at="end"), recorded.blocks(name, at="end")) for name in expected}
    assert found == expected


@pytest.mark.skipif(not compiled.has_fortran(), reason="no gfortran here")
def test_fortran_allocate(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        arrays = signatures.load("arrays")
        def main():
            arrays.take_allocate(125_003)  # @array
            arrays.take_matrix(301, 401)  # @matrix
            arrays.give_back_matrix()
            arrays.take_matrix(503, 601)  # @again
        """,
        libraries=["arrays"],
    )
    assert recorded.held("array", at="end") == 8 * 125_003
    assert (recorded.held("matrix", at="end"), recorded.held("again", at="end")) == (0, 8 * 503 * 601)


def test_numpy_arrays_and_their_residency(tmp_path: Path) -> None:
    """An array of zeros counts in full and stays as untouched as it would be without a recorder."""
    pytest.importorskip("numpy")
    recorded = record(
        tmp_path,
        """
        import numpy as np
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def main():
            before = resident()
            zeros = np.zeros(300_000_000, dtype=np.uint8)  # @zeros
            print(resident() - before)
            ones = np.ones(1_000_003, dtype=np.float64)  # @ones
            view = ones[10:-10]
            copy = view.copy()  # @copy
            global kept
            kept = zeros, ones, copy
        """,
    )
    assert int(recorded.stdout) < 20_000_000
    # Beside the data numpy takes two words for the shape, unless it has some left over.
    assert recorded.held("zeros") in (300_000_000, 300_000_016)
    assert recorded.held("copy") in (8 * (1_000_003 - 20), 8 * (1_000_003 - 20) + 16)
    # np.ones is a Python function: its block lies in a frame of numpy below the line that called it.
    line = recorded.line("ones")
    through = [
        s for s in recorded.capture.stacks("peak") if s.kind == "native" and any(f.line == line for f in s.frames)
    ]
    assert sum(s.bytes for s in through if s.bytes > 1_000_000) in (8 * 1_000_003, 8 * 1_000_003 + 16)
