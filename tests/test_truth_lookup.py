"""malloc reached without a call slot: by dlsym, by stored pointers, through ctypes, while a library is being loaded."""

from pathlib import Path

import pytest

from recording import needs_engine, record

pytestmark = needs_engine

WAYS = [
    "take_stored",
    "take_stored_constant",
    "take_table",
    "take_dlsym_default",
    "take_dlsym_next",
    "take_dlsym_handle",
    "take_dlvsym",
]


@pytest.mark.parametrize("moment", ["loaded before", "loaded while recording"])
@pytest.mark.parametrize("way", WAYS)
def test_a_pointer_to_malloc(tmp_path: Path, way: str, moment: str) -> None:
    before = moment == "loaded before"
    recorded = record(
        tmp_path,
        f"""
        import signatures
        {'lookup = signatures.load("lookup")' if before else ""}
        def main():
            {"" if before else 'global lookup; lookup = signatures.load("lookup")'}
            block = lookup.{way}(1_000_003)  # @block
            gone = lookup.{way}(2_000_003)  # @gone
            lookup.give_back_table(gone)
        """,
        libraries=["lookup"],
    )
    assert (recorded.held("block", at="end"), recorded.blocks("block", at="end")) == (1_000_003, 1)
    assert recorded.held("gone", at="end") == 0


def test_malloc_through_ctypes(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import ctypes
        def main():
            libc = ctypes.CDLL(None)
            libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
            libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
            block = libc.malloc(1_000_003)  # @block
            gone = libc.malloc(2_000_003)  # @gone
            libc.free(gone)
        """,
    )
    assert (recorded.held("block", at="end"), recorded.held("gone", at="end")) == (1_000_003, 0)


def test_a_constructor_at_dlopen(tmp_path: Path) -> None:
    """Its block counts for the line that loaded the library, and goes when the library is unloaded."""
    recorded = record(
        tmp_path,
        """
        import _ctypes, signatures
        def main():
            library = signatures.load("constructor")
            after = library.take_after_load(1_000_003)  # @after
            _ctypes.dlclose(library._handle)
            again = signatures.load("constructor")
        """,
        libraries=["constructor"],
    )
    assert recorded.held("after", at="end") == 1_000_003
    blocks = [
        s.bytes
        for s in recorded.capture.stacks("end")
        if s.kind == "native" and s.passes("main") and s.bytes >= 2_000_003
    ]
    assert len(blocks) == 1, "the first load's block was freed at its unload, the second's is there"
    assert blocks[0] < 2_100_000


def test_loading_and_unloading_many_times(tmp_path: Path) -> None:
    """A library that comes and goes lies at changing addresses; each time its slots are found."""
    recorded = record(
        tmp_path,
        """
        import _ctypes, signatures
        def main():
            for _ in range(200):
                library = signatures.load("constructor")
                library.take_after_load(1_000)  # @kept
                handle = library._handle
                del library
                _ctypes.dlclose(handle)
        """,
        libraries=["constructor"],
    )
    assert (recorded.held("kept", at="end"), recorded.blocks("kept", at="end")) == (200_000, 200)


def test_dlsym_and_dlopen_keep_their_caller(tmp_path: Path) -> None:
    """Names that are not ours resolve as ever, and what is not there is refused with the loader's own words."""
    recorded = record(
        tmp_path,
        """
        import ctypes
        def main():
            libc = ctypes.CDLL("libc.so.6")
            assert libc.strlen(b"hiwater") == 7
            try:
                libc.no_such_function_anywhere
            except AttributeError as error:
                print(error)
            try:
                ctypes.CDLL("libnosuchlibrary.so.99")
            except OSError as error:
                print(error)
        """,
    )
    assert "undefined symbol: no_such_function_anywhere" in recorded.stdout
    assert "libnosuchlibrary.so.99: cannot open shared object file" in recorded.stdout
