"""Source lines and inlined functions of native code, and where else than in the file itself they are found."""

import http.server
import importlib.util
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import compiled
from hiwater.analysis.symbols import files, names_file, source_lines
from hiwater.analysis.symbols.debuginfod import Servers
from hiwater.analysis.symbols.elf import ElfFile
from hiwater.analysis.symbols.naming import FunctionNames
from hiwater.capture.native_frames import Module, NativePlace
from hiwater.errors import BadRequest

SOURCE = """\
#include <stdlib.h>
volatile int after;
namespace shapes {
inline __attribute__((always_inline)) void* deep(size_t bytes) {
    void* block = malloc(bytes);
    after = 1;
    return block;
}
template <typename T> __attribute__((noinline)) T* take(size_t count) {
    T* block = (T*)deep(count * sizeof(T));
    after = 2;
    return block;
}
}
extern "C" void* enter(size_t count) {
    void* block = shapes::take<long>(count);
    after = 3;
    return block;
}
"""
TAKE, DEEP = "long* shapes::take<long>(unsigned long)", "shapes::deep(unsigned long)"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "one.cpp").write_text(SOURCE)
    subprocess.run([*compiled.CXX, "-O2", tmp_path / "one.cpp", "-o", tmp_path / "one.so"], check=True)
    return tmp_path / "one.so"


def module_of(library: Path) -> Module:
    with ElfFile(str(library)) as file:
        return Module(str(library), file.identity())


def after_malloc(library: Path) -> int:
    """The return address of the call of malloc."""
    command = ["objdump", "-d", "--no-show-raw-insn", library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (call,) = [number for number, line in enumerate(lines) if "malloc@plt>" in line and "call" in line]
    return int(lines[call + 1].split(":")[0], 16)


def only(monkeypatch: pytest.MonkeyPatch, finder: str | None) -> None:
    has = importlib.util.find_spec("symbolic") if finder == "symbolic" else finder is None or shutil.which(finder)
    if not has:
        pytest.skip(f"{finder} is not installed")
    monkeypatch.setattr(source_lines, "finder", lambda: finder)


@pytest.mark.parametrize("finder", ["symbolic", "llvm-symbolizer", "addr2line"])
def test_lines_and_inlined_functions(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    only(monkeypatch, finder)
    address = after_malloc(library)
    chain, nowhere = FunctionNames(tmp_path / "cache").of(module_of(library), [address, 0x10])
    source = str(tmp_path / "one.cpp")
    assert chain[0] == NativePlace(TAKE, source, 10)
    assert chain[1:] == (NativePlace(DEEP, source, 5),)
    assert nowhere == (NativePlace("one.so+0x10"),)


@pytest.mark.parametrize("finder", ["symbolic", "llvm-symbolizer", "addr2line"])
def test_an_inlined_function_without_a_mangled_name_is_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """`addr2line` gives it the name of the function around it."""
    only(monkeypatch, finder)
    library = tmp_path / "one.so"
    (tmp_path / "one.cpp").write_text(SOURCE.replace("inline __attr", 'extern "C" inline __attr'))
    subprocess.run([*compiled.CXX, "-O2", tmp_path / "one.cpp", "-o", library], check=True)
    (chain,) = FunctionNames(tmp_path / "cache").of(module_of(library), [after_malloc(library)])
    assert [one.function for one in chain] in ([TAKE], [TAKE, "deep"])


RUST = """\
#include <stdlib.h>
volatile int after;
extern "C" void* named(size_t bytes) __asm__("_RNvNtCs1234_5shape6inside4take");
extern "C" __attribute__((noinline)) void* named(size_t bytes) {
    void* block = malloc(bytes);
    after = 1;
    return block;
}
extern "C" void* legacy(size_t bytes) __asm__("_ZN5shape6inside4give17h0123456789abcdefE");
extern "C" __attribute__((noinline)) void* legacy(size_t bytes) {
    after = 2;
    return named(bytes);
}
"""


@pytest.mark.parametrize("finder", ["symbolic", "llvm-symbolizer", "addr2line", None])
def test_names_of_rust_are_the_same_whoever_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str | None
) -> None:
    """What is read is mangled: `symbolic` 13.9 has no demangler."""
    only(monkeypatch, finder)
    library = tmp_path / "rust.so"
    (tmp_path / "rust.cpp").write_text(RUST)
    subprocess.run([*compiled.CXX, "-O1", tmp_path / "rust.cpp", "-o", library], check=True)
    command = ["nm", library]
    symbols = [
        line.split() for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    starts = {symbol[2]: int(symbol[0], 16) for symbol in symbols if len(symbol) == 3}
    addresses = [starts["_RNvNtCs1234_5shape6inside4take"] + 1, starts["_ZN5shape6inside4give17h0123456789abcdefE"] + 1]
    found = FunctionNames(tmp_path / "cache").of(module_of(library), addresses)
    assert [chain[0].function for chain in found] == ["shape::inside::take", "shape::inside::give"]


def test_names_alone_where_nothing_reads_lines(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once something does, what is in the cache is found again, with lines."""
    module, address = module_of(library), after_malloc(library)
    only(monkeypatch, None)
    assert FunctionNames(tmp_path / "cache").of(module, [address]) == [(NativePlace(TAKE),)]
    monkeypatch.undo()
    found = FunctionNames(tmp_path / "cache").of(module, [address])
    assert [one.line for one in found[0]] == [10, 5]
    library.unlink()
    assert FunctionNames(tmp_path / "cache").of(module, [address]) == found


def separated(library: Path) -> Path:
    """Move the debug information into a file of its own, and leave nothing but exported names."""
    debug = library.with_name("one.debug")
    subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True)
    subprocess.run(["strip", "--strip-all", library], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", library], check=True)
    return debug


@pytest.mark.parametrize("has_build_id", [True, False])
def test_separate_debug_information(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_build_id: bool) -> None:
    (tmp_path / "one.cpp").write_text(SOURCE)
    library = tmp_path / "one.so"
    build_id = f"-Wl,--build-id={'sha1' if has_build_id else 'none'}"
    subprocess.run([*compiled.CXX, "-O2", build_id, tmp_path / "one.cpp", "-o", library], check=True)
    address = after_malloc(library)
    debug = separated(library)
    module = module_of(library)

    def line(cache: str) -> int:
        return FunctionNames(tmp_path / cache).of(module, [address])[0][0].line

    assert line("beside") == 10
    hidden = tmp_path / ".debug"
    hidden.mkdir()
    debug.rename(hidden / debug.name)
    assert line("hidden") == 10
    monkeypatch.setattr(files, "DEBUG_ROOT", str(tmp_path / "root"))
    place = tmp_path / "root" / f".build-id/{module.identity[:2]}/{module.identity[2:]}.debug"
    if not has_build_id:
        place = Path(f"{tmp_path}/root{tmp_path}/{debug.name}")
    place.parent.mkdir(parents=True)
    (hidden / debug.name).rename(place)
    assert line("root") == 10
    # That of another build is not taken for it.
    (tmp_path / "one.cpp").write_text("\n\n" + SOURCE)
    other = tmp_path / "other.so"
    subprocess.run([*compiled.CXX, "-O2", build_id, tmp_path / "one.cpp", "-o", other], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", other, place], check=True)
    assert line("another") == 0


@contextmanager
def debuginfod(folder: Path) -> Iterator[tuple[str, list[str]]]:
    asked = list[str]()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type, misc] # as its server calls it

        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_a_server_of_debug_information_is_asked_only_on_request(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, debug, module = after_malloc(library), separated(library), module_of(library)
    served = tmp_path / "served" / "buildid" / module.identity / "debuginfo"
    served.parent.mkdir(parents=True)
    debug.rename(served)
    with debuginfod(tmp_path / "served") as (url, asked):
        monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:1 {url}/")
        assert FunctionNames(tmp_path / "cache").of(module, [address])[0][0].line == 0
        assert asked == []
        servers = Servers()
        found = FunctionNames(tmp_path / "cache", fetch=servers.fetch).of(module, [address])
        assert [one.line for one in found[0]] == [10, 5]
        assert servers.unreachable == ["http://127.0.0.1:1"]
        # What it sends is used if it is what was asked for.
        served.write_bytes(Path("/bin/true").read_bytes())
        other = tmp_path / "fresh"
        assert FunctionNames(other, fetch=servers.fetch).of(module, [address])[0][0].line == 0
    monkeypatch.setenv("DEBUGINFOD_URLS", "")
    with pytest.raises(BadRequest, match="server"):
        Servers()


@pytest.mark.parametrize("finder", ["symbolic", "llvm-symbolizer", "addr2line"])
def test_a_finder_that_does_not_end_is_stopped(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """Names come from the tables then."""
    monkeypatch.setattr(source_lines, "finder", lambda: finder)
    monkeypatch.setattr(source_lines, "_MOST_SECONDS", 0.2)
    monkeypatch.setattr(source_lines, "_SYMBOLIC", "import time; time.sleep(60)")
    slow = tmp_path / "bin" / finder
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    began = time.monotonic()
    assert FunctionNames(tmp_path / "cache").of(module_of(library), [after_malloc(library)]) == [(NativePlace(TAKE),)]
    assert time.monotonic() - began < 20


def test_a_finder_has_little_memory(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may ask for any amount."""
    monkeypatch.setattr(source_lines, "finder", lambda: "addr2line")
    finder = tmp_path / "bin" / "addr2line"
    finder.parent.mkdir()
    finder.write_text(f"#!/bin/sh\nulimit -v > {tmp_path}/kib\n")
    finder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{finder.parent}:{os.environ['PATH']}")
    FunctionNames(tmp_path / "cache").of(module_of(library), [after_malloc(library)])
    assert int((tmp_path / "kib").read_text()) <= 3 << 20


def test_damaged_lines_are_no_lines(library: Path, tmp_path: Path) -> None:
    """Whatever a file says, the reader ends, and gives names or none."""
    address, content = after_malloc(library), bytearray(library.read_bytes())
    with ElfFile(str(library)) as file:
        sections = [one for one in file.sections if one.name.startswith(".debug_")]
    for one in sections:
        content[one.offset : one.offset + one.size] = bytes(255 - byte for byte in content[one.offset :][: one.size])
    library.write_bytes(content)
    (chain,) = FunctionNames(tmp_path / "cache").of(module_of(library), [address])
    assert chain[0].function == TAKE


@pytest.mark.parametrize(
    "content",
    [
        "{", "{}", "[]", '{"format": "hiwater.symbols/1", "modules": {"aa": {"level": 1, "places": {"0xx": []}}}}',
        "[" * 100_000, '{"format": "hiwater.symbols/1", "modules": {"aa": {"level": 1, "places": {"0x1": [[1]]}}}}',
        '{"format": "hiwater.symbols/1", "modules": {"aa": {"level": "x", "places": {}}}}', '{"format": "other"}',
    ],
)  # fmt: skip
def test_other_content_than_names_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.hiw.symbols").write_text(content)
    assert names_file.with_captures([tmp_path / "run.hiw"]) == {}


def test_an_address_before_all_code_is_in_no_function(library: Path, tmp_path: Path) -> None:
    assert FunctionNames(tmp_path / "cache").of(module_of(library), [0]) == [(NativePlace("one.so+0x0"),)]
