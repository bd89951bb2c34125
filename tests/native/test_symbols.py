"""The names that files of native code have for their functions."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import compiled
from hiwater.analysis.symbols import demangle
from hiwater.analysis.symbols.elf import ElfFile, NotElf
from recording import rounds


def test_the_functions_of_a_file_are_those_that_nm_lists(tmp_path: Path) -> None:
    library = compiled.library("native_frames")
    with ElfFile(str(library)) as file:
        functions = file.functions()
    command = ["nm", "--defined-only", "--print-size", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [row for row in map(str.split, listed) if len(row) == 4 and row[2] in "tT"]
    wanted = {name: range(int(start, 16), int(start, 16) + int(size, 16)) for start, size, _, name in rows}
    for name in ("first", "second", "third", "wander", "_ZN6shapes4takeEm"):
        assert functions.at(wanted[name][0]) == functions.at(wanted[name][-1]) == name
    # Between functions there are none.
    ends = [one.stop for one in wanted.values() if not any(one.stop in other for other in wanted.values())]
    assert len(ends) > 3 and {*map(functions.at, ends)} == {None}


def test_functions_of_assembly_may_have_no_size(tmp_path: Path) -> None:
    """Then one ends where the next one begins."""
    (tmp_path / "one.s").write_text("""
        .globl one, two
        .type one, @function
        .type two, @function
        one: nop; nop; nop
        two: nop; ret
    """)
    subprocess.run([*compiled.C, "one.s", "-o", "one.so"], cwd=tmp_path, check=True)
    with ElfFile(str(tmp_path / "one.so")) as file:
        functions = file.functions()
    names = [functions.texts[at:].partition(b"\0")[0] for at in functions.name.tolist()]
    start = int(functions.start[names.index(b"one")])
    assert [functions.at(start + at) for at in range(4)] == ["one", "one", "one", "two"]


def test_the_identity_is_the_build_id(tmp_path: Path) -> None:
    library = tmp_path / "one.so"
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    for option, identity in (("0x00112233445566778899", "00112233445566778899"), ("none", "headers:")):
        subprocess.run([*compiled.C, f"-Wl,--build-id={option}", tmp_path / "one.c", "-o", library], check=True)
        with ElfFile(str(library)) as file:
            assert file.identity().startswith(identity)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Whatever is in the file: no error but the one for it, and bounded memory."""
    whole = compiled.library("native_frames").read_bytes()
    damaged = tmp_path / "damaged.so"
    choice = random.Random(1)
    for _ in range(rounds(300)):
        content = bytearray(whole[: choice.choice([len(whole), choice.randrange(len(whole))])])
        for _ in range(choice.randrange(1, 20)):
            place = choice.choice([choice.randrange(64), len(content) - 1 - choice.randrange(min(len(content), 2000))])
            if place < len(content):
                content[place] = choice.randrange(256)
        damaged.write_bytes(content)
        try:
            with ElfFile(str(damaged)) as file:
                file.identity()
                functions = file.functions()
                for address in (0, 0x1100, 1 << 40):
                    functions.at(address)
        except NotElf:
            pass


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        ElfFile(str(tmp_path / "pipe"))


NAMES = {
    "_ZN6shapes4takeEm": "shapes::take(unsigned long)",
    "_ZN4core3fmt5write17h0123456789abcdefE": "core::fmt::write",
    "_ZNSt6vectorIiSaIiEE9push_backEOi": "std::vector<int, std::allocator<int> >::push_back(int&&)",
    "_ZN6shapes4takeEm.constprop.0.cold": "shapes::take(unsigned long)",
    "plain_c.part.3": "plain_c",
    "__pyx_pw_6pandas_5_libs_7hashing_1hash_object_array": "pandas._libs.hashing.hash_object_array",
    "_ZL31__pyx_pw_7pyarrow_3lib_199arrayP7_objectPKS0_lS0_": "pyarrow.lib.array",
    "_ZL35__pyx_f_7pyarrow_3lib__append_arrayP7_object.isra.0": "pyarrow.lib._append_array",
    "__pyx_getprop_7pyarrow_3lib_6Buffer_address": "pyarrow.lib.Buffer.address",
    "plain_c": "plain_c",
    "_Z": "_Z",
    "_Zwith space": "_Zwith space",
}


def test_names_are_as_their_programmers_wrote_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demangle.demangled([*NAMES]) == [*NAMES.values()]
    monkeypatch.setattr(shutil, "which", lambda _: None)  # without c++filt
    assert demangle.demangled([*NAMES]) == [*NAMES.values()]
