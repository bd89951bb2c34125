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


def test_functions_that_ctypes_looked_up_before(tmp_path: Path) -> None:
    """Blocks by a kept `malloc` are there, and what a kept `free` frees is gone. Afterwards they are the C library's
    own again."""
    recorded = record(
        tmp_path,
        """
        import ctypes
        libc = ctypes.CDLL(None)
        take, again, give = libc.malloc, libc.realloc, libc.free
        take.argtypes, take.restype = [ctypes.c_size_t], ctypes.c_void_p
        again.argtypes, again.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
        give.argtypes, give.restype = [ctypes.c_void_p], None
        signature = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
        address = ctypes.cast(take, ctypes.c_void_p).value
        from_address = signature(address)
        early = take(100_000)
        def main():
            global kept
            give(early)
            kept = take(4_000_001), from_address(1_000_003)  # @block
            give(take(2_000_003))  # @gone
            grown = again(take(500), 3_000_001)  # @grown
            bytearray_of_c = [take(64) for _ in range(1_000)]  # @many
            for block in bytearray_of_c:
                give(block)
        def after():
            for block in kept:
                give(block)
            give(take(100))
            print("address", ctypes.cast(take, ctypes.c_void_p).value == address)
        """,
    )
    assert (recorded.held("block", at="end"), recorded.blocks("block", at="end")) == (5_000_004, 2)
    assert (recorded.held("grown", at="end"), recorded.blocks("grown", at="end")) == (3_000_001, 1)
    assert recorded.held("many") in (0, 64_000)
    for name in ("gone", "many"):
        assert (recorded.held(name, at="end"), recorded.blocks(name, at="end")) == (0, 0)
    assert "address True" in recorded.stdout


def test_pointers_in_data_of_a_library(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        lookup = signatures.load("lookup")
        lookup.keep_dlsym()
        address = lookup.kept_address()
        def main():
            block = lookup.take_kept(1_000_003)  # @block
            gone = lookup.take_kept(2_000_003)  # @gone
            lookup.give_back_table(gone)
        def after():
            print("put back", lookup.kept_address() == address, lookup.take_kept(100) != 0)
        """,
        libraries=["lookup"],
    )
    assert (recorded.held("block", at="end"), recorded.blocks("block", at="end")) == (1_000_003, 1)
    assert recorded.held("gone", at="end") == 0
    assert "put back True True" in recorded.stdout


def test_a_pointer_that_the_c_library_keeps(tmp_path: Path) -> None:
    """`free` as the destructor of a thread's own block, named before the recording began."""
    recorded = record(
        tmp_path,
        """
        import signatures
        lookup = signatures.load("lookup")
        assert lookup.make_key() == 0
        def main():
            assert lookup.allocate_in_thread_with_key(1_000_003) == 0  # @thread
        """,
        libraries=["lookup"],
    )
    assert (recorded.held("thread"), recorded.held("thread", at="end")) == (1_000_003, 0)


def test_data_that_a_library_closed_is_left_alone(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        lookup = signatures.load("lookup")
        assert lookup.close_pages() == 0
        def main():
            lookup.keep_dlsym()
            lookup.take_kept(1_000_003)  # @block
        """,
        libraries=["lookup"],
    )
    assert recorded.held("block", at="end") == 1_000_003


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
