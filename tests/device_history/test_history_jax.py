"""JAX's profile of device memory, made for real on the CPU and read as a capture.

JAX runs in a process of its own: it has threads from then on, and warns at every fork of whoever loaded it.
"""

import gzip
import importlib.util
import subprocess
import sys

import pytest

import hiwater
from hiwater.cli import main
from hiwater.errors import CaptureError, ForeignFile

if importlib.util.find_spec("jax") is None:
    pytest.skip("no jax", allow_module_level=True)
pytest.importorskip("google.protobuf")

WIDTH = 700
PROGRAM = f"""
import jax

def make():
    return jax.numpy.ones(({WIDTH}, {WIDTH}), "float32")

def profile():
    kept = [make() for _ in range(3)]
    other = jax.numpy.zeros(1000, "float32")
    jax.block_until_ready([kept, other])
    jax.profiler.save_device_memory_profile("memory.prof")
    print(sum(array.nbytes for array in jax.live_arrays()))
    more = [make() for _ in range(2)]
    open("later.pb.gz", "wb").write(jax.profiler.device_memory_profile())

profile()
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    (folder / "arrays.py").write_text(PROGRAM)
    words = [sys.executable, str(folder / "arrays.py")]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return folder / "memory.prof", int(done.stdout)


def test_buffers_have_the_lines_that_made_them(profile):
    path, live = profile
    capture = hiwater.open(path)
    assert capture.device == "jax:0" and capture.problems() == []
    assert capture.peak.allocated_bytes == capture.end.allocated_bytes >= live
    program = str(path.with_name("arrays.py"))
    made = [
        stack for stack in capture.end.stacks if any((f.function, f.file) == ("make", program) for f in stack.frames)
    ]
    assert sum(stack.bytes for stack in made) >= 3 * 4 * WIDTH * WIDTH
    assert sum(stack.blocks for stack in made) >= 3
    functions = [frame.function for frame in made[0].frames]
    assert functions.index("make") > functions.index("profile")  # root first


def test_reports_say_what_it_is(profile, capsys):
    path, _ = profile
    assert main(["report", str(path), "--full"]) == 0
    said = capsys.readouterr().out
    assert "JAX's profile of device memory" in said and "nothing from before" in said and "make (arrays.py" in said
    assert main(["report", str(path), "--format", "collapsed", "--kind", "device"]) == 0
    assert "make" in capsys.readouterr().out


def test_two_profiles_are_compared(profile, capsys):
    path, _ = profile
    assert main(["diff", str(path), str(path.with_name("later.pb.gz"))]) == 0
    assert "grew" in capsys.readouterr().out


def test_other_profiles_are_refused(tmp_path):
    from hiwater.device_history.pprof_proto import profile_pb2

    other = profile_pb2.Profile()
    other.string_table.extend(["", "cpu", "nanoseconds"])
    other.sample_type.add(type=1, unit=2)
    path = tmp_path / "cpu.pb.gz"
    path.write_bytes(gzip.compress(other.SerializeToString()))
    with pytest.raises(ForeignFile, match="not of device memory"):
        hiwater.open(path)


def test_a_damaged_profile_is_one_clear_error(profile, tmp_path):
    content = gzip.decompress(profile[0].read_bytes())
    path = tmp_path / "damaged.pb.gz"
    for place in range(0, len(content), max(1, len(content) // 200)):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(gzip.compress(bytes(damaged)))
        try:
            assert len(hiwater.open_run(path).captures[0].peak.stacks) >= 0
        except CaptureError:
            continue
