"""Stacks that are hard to walk: each is right, or says that its frames are unknown."""

import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

import compiled
import hiwater
from hiwater.analysis.symbols.naming import FunctionNames
from hiwater.capture.native_frames import Frames
from hiwater.report import native_frames
from native_recordings import native_part, record, stacks
from packages import skip_without
from recording import needs_engine

pytestmark = needs_engine

CHAIN = ["first", "second", "third", "shapes::take(unsigned long)"]
CHECKED = {"HIWATER_CHECK_UNWIND": "1"}
COUNTERS = "import hiwater._core as core; print({k: v for k, v in core.counters().items() if k.startswith('native_')})"


def figures(folder: Path) -> dict[str, int]:
    found: dict[str, int] = eval((folder / "out").read_text())
    return found


@pytest.mark.once
def test_a_signal_handler_on_a_stack_of_its_own(tmp_path: Path) -> None:
    path = record(tmp_path, "for _ in range(3): native.in_signal(10_007)\n", "--native")
    (handler,) = stacks(path, 10_007)
    assert handler[-4:] == CHAIN and handler[0] == "<module>"
    assert {tuple(native_part(stack)) for stack in stacks(path, 10_008)} == {("in_signal", *CHAIN)}


@pytest.mark.once
def test_a_stack_that_the_program_has_made(tmp_path: Path) -> None:
    path = record(tmp_path, "for _ in range(3): native.in_context(10_007)\n", "--native")
    (other,) = stacks(path, 10_007)
    assert other == ["<module>", "[unknown frames]", other[2], "context_body", *CHAIN]
    assert {tuple(stack[-5:]) for stack in stacks(path, 10_008)} == {("in_context", *CHAIN)}


@pytest.mark.once
def test_recursion_beyond_the_limit_of_a_walk(tmp_path: Path) -> None:
    """The innermost frames are there, and it is said that others are not."""
    path = record(tmp_path, """
        native.deep(2_048, 10_007)
        native.deep(100, 20_011)
    """, "--native")  # fmt: skip
    (cut,) = stacks(path, 10_007)
    assert cut == ["<module>", "[unknown frames]", *["deep"] * 255, CHAIN[-1]]
    (whole,) = stacks(path, 20_011)
    assert whole[-102:] == [*["deep"] * 101, CHAIN[-1]] and "[unknown frames]" not in whole


def compile_one(folder: Path, name: str, *options: str) -> Path:
    """A library whose one function allocates."""
    (folder / "one.c").write_text("""#include <stdlib.h>
        volatile int after;
        void* enter(size_t bytes) { void* block = malloc(bytes); after = 1; return block; }
    """)
    subprocess.run([*compiled.C, *options, "one.c", "-o", name], cwd=folder, check=True)
    return folder / name


@pytest.mark.once
def test_a_library_without_an_index_of_its_tables(tmp_path: Path) -> None:
    compile_one(tmp_path, "one.so", "-Wl,--no-eh-frame-hdr")
    path = record(tmp_path, f"""
        ctypes.CDLL("./one.so").enter(10_007)
        native.first(20_011)
        {COUNTERS}
    """, "--native", environment=CHECKED)  # fmt: skip
    assert stacks(path, 10_007) == [["<module>", "[unknown frames]", "enter"]]
    assert native_part(stacks(path, 20_011)[0]) == CHAIN
    assert figures(tmp_path)["native_mismatches"] == 0


SEGMENTS_AT, SEGMENT, NOTES = 64, struct.Struct("<IIQQQQQQ"), 4


def move_notes(library: Path) -> None:
    """The headers say that the notes are in memory where nothing is."""
    content = bytearray(library.read_bytes())
    for number in range(content[56]):
        at = SEGMENTS_AT + number * SEGMENT.size
        kind, flags, offset, _, _, *sizes = SEGMENT.unpack_from(content, at)
        if kind == NOTES:
            SEGMENT.pack_into(content, at, kind, flags, offset, 0x7000000, 0x7000000, *sizes)
    library.write_bytes(content)


def move_headers(library: Path) -> None:
    """The headers of its segments are at the end of the file, which is not loaded."""
    content = bytearray(library.read_bytes())
    content += bytes(-len(content) % 4096)
    struct.pack_into("<Q", content, 32, len(content))
    library.write_bytes(content + content[SEGMENTS_AT : SEGMENTS_AT + content[56] * SEGMENT.size])


@pytest.mark.once
def test_libraries_with_headers_as_few_have_them(tmp_path: Path) -> None:
    compile_one(tmp_path, "short.so", "-Wl,--build-id=0x0011223344")
    compile_one(tmp_path, "none.so", "-Wl,--build-id=none")
    move_notes(compile_one(tmp_path, "notes.so"))
    move_headers(compile_one(tmp_path, "headers.so", "-Wl,--build-id=0x5566778899aa"))
    path = record(tmp_path, """
        for number, name in enumerate(["short", "none", "notes", "headers"], 1):
            ctypes.CDLL(f"./{name}.so").enter(number * 1_000 + 7)
    """, "--native")  # fmt: skip
    for number in (1, 2, 3):
        (found,) = stacks(path, number * 1_000 + 7)
        assert found[-1] == "enter" and "[unknown frames]" not in found, number
    (found,) = stacks(path, 4_007)
    assert found[:2] == ["<module>", "[unknown frames]"] and found[2].startswith("headers.so+0x")


def test_greenlets_that_share_one_stretch_of_stack(tmp_path: Path) -> None:
    """Their frames are at the same addresses, one after the other."""
    skip_without("greenlet")
    path = record(tmp_path, f"""
        import greenlet
        def deep(left, call):
            return call() if left == 0 else deep(left - 1, call)
        def one():
            for _ in range(200):
                native.first(10_007)
                back(lambda: other.switch())
        def two():
            for number in range(200):
                deep(number % 5, lambda: native.aligned(100 + number % 3 * 64, 20_011))
                back(lambda: this.switch())
        def back(switch):
            native.call_back(ctypes.CFUNCTYPE(None)(switch))
        this, other = greenlet.greenlet(one), greenlet.greenlet(two)
        this.switch()
        {COUNTERS}
    """, "--native", environment=CHECKED)  # fmt: skip
    found = figures(tmp_path)
    assert found["native_mismatches"] == 0 and found["native_checked"] > 1_000
    assert {tuple(native_part(stack)) for stack in stacks(path, 10_007)} == {tuple(CHAIN)}
    shapes = ("shapes::realigned(unsigned long, unsigned long)", "shapes::fixed_by_size(unsigned long, unsigned long)")
    assert {tuple(native_part(stack)) for stack in stacks(path, 20_011)} == {("aligned", *shapes, CHAIN[-1])}


def test_an_interpreter_without_symbols(tmp_path: Path) -> None:
    """Where its loop is does not depend on names."""
    name = sysconfig.get_config_var("INSTSONAME")
    if not name or f"/{name}\n" not in Path("/proc/self/maps").read_text():
        pytest.skip("the interpreter is no library")
    bare = tmp_path / name
    shutil.copy(Path(sysconfig.get_config_var("LIBDIR")) / name, bare)
    subprocess.run(["strip", "--strip-all", "--remove-section=.comment", bare], check=True)
    environment = {**CHECKED, "LD_LIBRARY_PATH": str(tmp_path)}
    path = record(tmp_path, f"""
        def inner():
            native.first(10_007)
        native.call_back(ctypes.CFUNCTYPE(None)(inner))
        kept = [sorted(map(str, range(20))) for _ in range(300)]
        {COUNTERS}
    """, "--native", environment=environment)  # fmt: skip
    found = figures(tmp_path)
    assert found["native_mismatches"] == found["native_unknown"] == 0 < found["native_checked"]
    capture = hiwater.open(path)
    capture.show_frames(Frames.mixed, FunctionNames(tmp_path / "cache").of)
    (stack,) = [one.frames for one in capture.end.stacks if one.bytes == 10_007]
    functions = [frame.function for frame in stack]
    assert functions[:2] == ["<module>", "inner"] and functions[-4:] == CHAIN
    assert "call_back" not in functions  # which is beyond the loop that runs `inner`
    assert any(frame.function.startswith(f"{name}+0x") for one in capture.end.stacks for frame in one.frames)


@pytest.mark.once
def test_generated_code_says_that_it_is(tmp_path: Path) -> None:
    (found,) = stacks(record(tmp_path, "native.generated(10_007)\n", "--native"), 10_007)
    assert found == ["<module>", "[unknown frames]", "[generated code]", *CHAIN]


@pytest.mark.once
def test_what_no_call_returns_to_is_no_generated_code(tmp_path: Path) -> None:
    (found,) = stacks(record(tmp_path, "native.jumped_to(10_007)\n", "--native"), 10_007)
    assert found == ["<module>", "[unknown frames]", *CHAIN]


@pytest.mark.once
def test_generated_code_has_the_names_of_its_compilers_map(tmp_path: Path) -> None:
    """A later entry of the map is of code in the place of an earlier one's."""
    path = record(tmp_path, """
        import os
        native.generated.restype = ctypes.c_void_p
        place = native.generated(10_007)
        other = native.generated(20_011)
        with open(f"/tmp/perf-{os.getpid()}.map", "w") as stream:
            stream.write(f"{place:x} 20 former\\nno line of a map\\n{place:x} 20 jitted loop\\n")
            stream.write(f"{other - 4096:x} 20 elsewhere\\n")
        print(os.getpid())
    """, "--native")  # fmt: skip
    Path(f"/tmp/perf-{int((tmp_path / 'out').read_text())}.map").unlink()
    capture = hiwater.open(path)
    native_frames.named([capture])
    held = {one.bytes: [frame.function for frame in one.frames] for one in capture.end.stacks}
    assert held[10_007] == ["<module>", "[unknown frames]", "jitted loop", *CHAIN]
    assert held[20_011] == ["<module>", "[unknown frames]", "[generated code]", *CHAIN]


RUST = """
use std::alloc::{alloc, Layout};
#[inline(never)]
pub fn generic<T>(count: usize) -> *mut u8 {
    unsafe { std::hint::black_box(alloc(Layout::array::<T>(count).unwrap())) }
}
#[no_mangle]
pub extern "C" fn enter(bytes: usize) -> usize {
    std::hint::black_box(generic::<u64>(bytes / 8)) as usize
}
"""


@pytest.mark.once
@pytest.mark.parametrize("mangling", ["v0", "legacy"])
def test_rust(tmp_path: Path, mangling: str) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    (tmp_path / "lib.rs").write_text(RUST)
    library = tmp_path / "libshapes.so"
    options = ["--edition=2021", "-O", "--crate-type=cdylib", "--crate-name=shapes"]
    subprocess.run(
        ["rustc", *options, f"-Csymbol-mangling-version={mangling}", "-Zunstable-options", "lib.rs", "-o", library],
        cwd=tmp_path, check=True, env={"PATH": str(Path(shutil.which("rustc") or "").parent) + ":/usr/bin:/bin",
            "HOME": str(Path.home()), "RUSTC_BOOTSTRAP": "1"},
    )  # fmt: skip
    (found,) = stacks(record(tmp_path, f"ctypes.CDLL({str(library)!r}).enter(100_008)\n", "--native"), 100_008)
    assert [name.partition("::<")[0] for name in found[-2:]] == ["enter", "shapes::generic"]


@pytest.mark.once
def test_what_allocates_for_its_caller_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "one.cpp").write_text("""#include <new>
        char* volatile after;
        extern "C" void enter(unsigned long bytes) { after = new char[bytes]; }
    """)
    subprocess.run([*compiled.CXX, "one.cpp", "-o", "one.so"], cwd=tmp_path, check=True)
    (found,) = stacks(record(tmp_path, 'ctypes.CDLL("./one.so").enter(10_007)\n', "--native"), 10_007)
    assert found[-1] == "enter"


FORTRAN = """
module shapes
  use iso_c_binding
contains
  subroutine enter(count) bind(c)
    integer(c_int), value :: count
    call fill(count)
  end subroutine
  subroutine fill(count)
    integer(c_int), value :: count
    real(8), pointer :: values(:)
    allocate(values(count))
    values(1) = 1
  end subroutine
end module
"""


@pytest.mark.once
@pytest.mark.skipif(not compiled.has_fortran(), reason="gfortran is not installed")
def test_fortran(tmp_path: Path) -> None:
    (tmp_path / "lib.f90").write_text(FORTRAN)
    subprocess.run([*compiled.FORTRAN, "-fno-inline", "lib.f90", "-o", "libshapes.so"], cwd=tmp_path, check=True)
    program = f"ctypes.CDLL({str(tmp_path / 'libshapes.so')!r}).enter(12_500)\n"
    (found,) = stacks(record(tmp_path, program, "--native"), 100_000)
    assert found[-2:] == ["enter", "shapes::fill"]
