"""The Python processes that a recorded program starts: each is recorded, exactly, however it is started and however
it ends."""

import json
import os
import site
import subprocess
import sys
import textwrap
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from children import hiwater_command, run_hiwater
from recording import child_environment, needs_engine, rounds
from waiting import PATIENCE_SECONDS, wait_until
from waiting_program import recording

pytestmark = needs_engine

BYTES = 100_003
ROW_BYTES = 512
# `take(n)` allocates n blocks of a size of their own. Modules of multiprocessing are looked for in the program's
# folder.
CHILD = f"""
import os, sys, time

def take(count):
    for _ in range(count):
        bytes({BYTES})

def has_ended(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

def work(count, ending="clean"):
    while ending == "outlives" and not has_ended(open("first.pid").read()):
        time.sleep(0.01)
    take(count)
    if ending == "killed":
        os.kill(os.getpid(), 9)
    if ending == "outlives":
        open("over", "w").close()

if __name__ == "__main__":
    work(int(sys.argv[1]), *sys.argv[2:])
"""


def record(folder: Path, text: str, *options: str) -> Path:
    """Record a program beside the module `child`; return the capture of its first process."""
    (folder / "child.py").write_text(CHILD)
    (folder / "program.py").write_text(textwrap.dedent(text))
    done = run_hiwater("run", "-o", "run.hiw", *options, "program.py", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run.hiw"


def captures_of_children(run: Path) -> list[naive_reader.NaiveCapture]:
    return [naive_reader.read(path) for path in sorted(Path(f"{run}.d").glob("*.hiw"))]


def rows(run: Path) -> list[dict[str, object]]:
    data = Path(f"{run}.d", "index.jsonl").read_bytes()
    assert len(data) % ROW_BYTES == 0
    return [json.loads(data[at : at + ROW_BYTES]) for at in range(0, len(data), ROW_BYTES)]


def taken(capture: naive_reader.NaiveCapture) -> int:
    """How many blocks `take` allocated, from the capture's totals."""
    found = 0
    for account in capture.tables["accounts"][1:]:
        frames = capture.frames(account["node"])[1]
        if frames and frames[-1].function == "take" and account["total_bytes"] >= BYTES:
            assert account["total_bytes"] == account["total_blocks"] * (BYTES + sys.getsizeof(b""))
            found += account["total_blocks"]
    return found


POOL = """
    import multiprocessing, os, child
    if __name__ == "__main__":
        open("first.pid", "w").write(str(os.getpid()))
        context = multiprocessing.get_context({method!r})
        children = [context.Process(target=child.work, args=(100 + number, {ending!r})) for number in range(3)]
        [process.start() for process in children]
        [process.join() for process in children if {ending!r} != "outlives"]
        if {ending!r} == "outlives":
            os._exit(0)
"""


@pytest.mark.grid
@pytest.mark.parametrize(
    ("method", "ending"),
    [  # a forkserver is the parent of its children, and ends them with it
        (method, ending)
        for method in ("fork", "spawn", "forkserver")
        for ending in ("clean", "killed", "outlives")
        if (method, ending) != ("forkserver", "outlives")
    ],
)
def test_processes_of_multiprocessing_are_recorded_exactly(tmp_path: Path, method: str, ending: str) -> None:
    run = record(tmp_path, POOL.format(method=method, ending=ending))
    if ending == "outlives":
        wait_until(lambda: Counter(map(taken, captures_of_children(run)))[102] == 1 and (tmp_path / "over").exists())
        wait_until(lambda: sum(row["event"] == "ended" for row in rows(run)) >= 3)
    first, children = naive_reader.read(run), captures_of_children(run)
    counts = Counter(map(taken, children))
    assert {count: counts[count] for count in (100, 101, 102)} == {100: 1, 101: 1, 102: 1}
    assert taken(first) == 0
    for capture in children:
        capture.check()
        assert capture.facts["run_id"] == first.facts["run_id"]
    killed = [row for row in rows(run) if row["event"] == "killed" and row["signal"] == 9]
    assert len(killed) == (3 if ending == "killed" else 0)


def test_captures_of_forked_and_started_children_are_named_alike(tmp_path: Path) -> None:
    begin = time.monotonic_ns()
    run = record(
        tmp_path,
        """
        import os, subprocess, sys
        os.fork() or os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "child.py", "1"])
        """,
    )
    paths = {naive_reader.read(path).facts["started_by"]: path for path in Path(f"{run}.d").glob("*.hiw")}
    assert len(paths) == 2 and "fork" in paths
    for path in paths.values():
        pid, _, milliseconds = path.stem.partition("-")
        assert int(pid) == naive_reader.read(path).header["pid"]
        assert begin <= (int(milliseconds) + 1) * 1_000_000 and int(milliseconds) * 1_000_000 <= time.monotonic_ns()


LAUNCHER = """
#include <unistd.h>
int main(int count, char** words) { return count < 2 || execv(words[1], words + 1); }
"""
EXECUTED = """
    import os, subprocess, sys
    command = [sys.executable, *{options!r}, "child.py", "123", {ending!r}]
    {start}
"""
STARTS = {
    "subprocess": "subprocess.run(command, env={environment})",
    "with preexec": "subprocess.run(command, env={environment}, preexec_fn=lambda: None)",
    "posix_spawn": "os.waitpid(os.posix_spawn(command[0], command, {environment} or os.environ), 0)",
    "posix_spawnp": "os.waitpid(os.posix_spawnp(command[0], command, {environment} or os.environ), 0)",
    "exec": "os.execve(command[0], command, {environment} or os.environ)",
    "shell": "subprocess.run(' '.join(command), shell=True, env={environment})",
    "through env": "subprocess.run(['/usr/bin/env', *command], env={environment})",
    "through a program of its own": "subprocess.run([os.path.abspath('launch'), *command], env={environment})",
    "system": "os.system(' '.join(command))",
    "popen": "os.popen(' '.join(command)).read()",
    "fork and exec": "os.fork() or os.execv(command[0], command); os.wait()",
}


def executed(
    folder: Path, start: str, ending: str = "clean", environment: str = "None", options: tuple[str, ...] = ()
) -> Path:
    (folder / "program.py").touch()
    if "launch" in STARTS[start]:
        subprocess.run(["cc", "-x", "c", "-", "-o", folder / "launch"], input=LAUNCHER, text=True, check=True)
    text = EXECUTED.format(options=options, ending=ending, start=STARTS[start].replace("{environment}", environment))
    return record(folder, text)


@pytest.mark.parametrize(
    ("start", "ending"),
    # After an exec the killed one would be the first process.
    [(start, ending) for start in STARTS for ending in ("clean", "killed") if (start, ending) != ("exec", "killed")],
)
def test_an_executed_interpreter_is_recorded_exactly(tmp_path: Path, start: str, ending: str) -> None:
    run = executed(tmp_path, start, ending)
    assert max(map(taken, captures_of_children(run))) == sum(map(taken, captures_of_children(run))) == 123


@pytest.mark.parametrize("start", ["subprocess", "posix_spawn", "exec", "shell"])
def test_a_child_with_an_environment_of_its_own_is_recorded(tmp_path: Path, start: str) -> None:
    run = executed(tmp_path, start, environment="{'PATH': '/bin'}" if start == "shell" else "{'A': 'b'}")
    assert sum(map(taken, captures_of_children(run))) == 123


@pytest.mark.parametrize("options", [("-s",), ("-X", "dev"), ("-Wignore", "-B")], ids=str)
def test_options_of_the_interpreter_change_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = executed(tmp_path, "subprocess", options=options)
    assert sum(map(taken, captures_of_children(run))) == 123


def started(run: Path) -> list[tuple[object, object]]:
    recorded = {capture.header["pid"] for capture in captures_of_children(run)}
    return [
        (row["program"], row["why"]) for row in rows(run) if row["event"] == "started" and row["pid"] not in recorded
    ]


@pytest.mark.parametrize("options", [("-S",), ("-BS",), ("-X", "dev", "-S"), ("-I",), ("-Bs", "-E")], ids=str)
def test_an_interpreter_without_site_or_environment_is_named_as_not_recorded(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    run = executed(tmp_path, "subprocess", options=options)
    assert started(run) == [(sys.executable, next(one for one in ("-S", "-I", "-E") if one[1] in "".join(options)))]


def test_an_interpreter_of_another_environment_is_named_as_not_recorded(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    other = str(tmp_path / "other" / "bin" / "python")
    run = record(tmp_path, f"import subprocess; subprocess.run([{other!r}, 'child.py', '5'])")
    assert started(run) == [(other, "")]
    assert captures_of_children(run) == []


def test_programs_see_an_environment_as_without_hiwater(tmp_path: Path) -> None:
    text = """
        import os, subprocess, sys
        seen = "import os, sys; print([word for word in os.environ if word == 'HIWATER_RUN'], os.getenv('A'))"
        subprocess.run([sys.executable, "-c", seen], env={"A": "b"})
        print([word for word in os.environ if word == 'HIWATER_RUN'], flush=True)
        subprocess.run(["env"], env={"A": "b"})
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    words = hiwater_command("run", "-o", tmp_path / "run.hiw", tmp_path / "program.py")
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=child_environment(None))
    assert done.stdout.splitlines() == ["[] b", "[]", "A=b"]


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "has ended"])
def test_what_starts_after_the_end_of_the_run_is_not_recorded(tmp_path: Path, ends: bool) -> None:
    """The shell keeps its environment, and the program that started it is over."""
    text = f"""
        import subprocess, sys
        wait = "while test ! -e go; do sleep 0.02; done; "
        words = ["sh", "-c", wait + sys.executable + " child.py 7; touch done"]
        shell = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not {ends}:
            open("go", "w").close()
            shell.wait()
    """
    run = record(tmp_path, text)
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists)
    assert list(map(taken, captures_of_children(run))) == ([] if ends else [7])


def test_a_child_in_a_folder_that_its_locale_cannot_name_is_recorded(tmp_path: Path) -> None:
    text = """
        import os, subprocess, sys
        os.mkdir("f\u00e6lles")
        environment = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-X", "utf8=0", os.path.abspath("child.py"), "8"]
        done = subprocess.run(command, cwd="f\u00e6lles", env=environment, stderr=subprocess.PIPE)
        sys.exit(done.stderr.decode())
    """
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = run_hiwater("run", "-q", "-o", "run.hiw", "program.py", folder=tmp_path)
    assert done.stderr == "\n"
    assert list(map(taken, captures_of_children(tmp_path / "run.hiw"))) == [8]


def test_nothing_is_left_of_programs_that_start_no_python(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        "import os, subprocess; subprocess.run(['true']); os.system('true'); subprocess.run(['nosuch'], shell=True)",
    )
    assert not Path(f"{run}.d").exists()


def test_the_resource_tracker_of_multiprocessing_is_no_part_of_a_program(tmp_path: Path) -> None:
    text = """
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=4096)
        memory.close()
        memory.unlink()
    """
    run = record(tmp_path, text)
    assert not Path(f"{run}.d").exists()


def test_no_children_records_the_first_process_alone(tmp_path: Path) -> None:
    run = record(tmp_path, POOL.format(method="fork", ending="clean"), "--no-children")
    assert not Path(f"{run}.d").exists()


def test_a_second_run_replaces_the_children_of_the_first(tmp_path: Path) -> None:
    record(tmp_path, POOL.format(method="fork", ending="clean"))
    run = record(tmp_path, "import os, child; os.wait() if os.fork() else child.work(7)")
    assert list(map(taken, captures_of_children(run))) == [7]
    record(tmp_path, "pass")
    assert not Path(f"{run}.d").exists()


def test_a_child_of_a_child_is_recorded(tmp_path: Path) -> None:
    text = """
        import os, subprocess, sys
        if os.fork() == 0:
            if os.fork() == 0:
                subprocess.run([sys.executable, "child.py", "31"])
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
    """
    run = record(tmp_path, text)
    found = captures_of_children(run)
    assert sorted(map(taken, found)) == [0, 0, 31]
    assert all(capture.facts["ppid"].isdigit() for capture in found)


@pytest.mark.once
@pytest.mark.parametrize("sample", [(), ("--sample", "4KiB")], ids=["exact", "sampled"])
def test_short_children_beyond_the_first_leave_a_row_each(tmp_path: Path, sample: tuple[str, ...]) -> None:
    text = """
        import os, child
        for number in range(60):
            if os.fork() == 0:
                child.take(number)
                os._exit(number)
            os.wait()
        if os.fork() == 0:
            held = bytearray(3_000_000)
            child.take(1000)
            os._exit(0)
        os.wait()
    """
    run = record(tmp_path, text, *sample)
    ended = [row for row in rows(run) if row["event"] == "ended"]
    assert [row["exit_code"] for row in ended] == [*range(60), 0]
    kept = [row["capture"] for row in ended if row["capture"]]
    assert len(kept) == 17
    assert kept[-1] == ended[-1]["capture"]
    assert sorted(kept) == sorted(path.name for path in Path(f"{run}.d").glob("*.hiw"))
    for number, row in enumerate(ended[:60]):
        assert number * (BYTES + 33) <= row["total_bytes"] < number * (BYTES + 33) + 100_000
        assert row["started_by"] == "fork" and row["ppid"] == naive_reader.read(run).header["pid"]
        assert row["inherited_bytes"] > 1000 or sample  # an estimate may be 0


def test_the_last_lines_of_a_run_tell_of_its_children(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    text = """
        import os, subprocess, sys
        if os.fork() == 0:
            held = bytearray(50_000_000)
            os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "-S", "-c", "pass"])
        subprocess.run([sys.executable, "-c", "pass"])
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = run_hiwater("run", "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    first, *rest = done.stderr.splitlines()
    assert first == "hiwater: 3 processes on 1 machine, 1 more not recorded"
    assert any(" (program.py), peak 47.7 MiB" in line for line in rest)


def test_a_later_recording_of_a_child_is_no_part_of_the_run(tmp_path: Path) -> None:
    text = """
        import os, hiwater, hiwater._core
        for number in range(20):
            if os.fork() == 0:
                os._exit(0)
            os.wait()
        if os.fork() == 0:
            hiwater._core.stop(0)
            with hiwater.record("own.hiw"):
                kept = bytearray(1000)
            os._exit(0)
        os.wait()
    """
    run = record(tmp_path, text)
    assert len([row for row in rows(run) if row["event"] == "ended"]) == 21
    assert (tmp_path / "own.hiw").exists()


def test_a_run_inside_a_recorded_program_is_a_run_of_its_own(tmp_path: Path) -> None:
    text = """
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "hiwater", "run", "-q", "-o", "inner.hiw", "child.py", "9"], check=True)
    """
    run = record(tmp_path, text)
    assert captures_of_children(run) == []
    assert taken(naive_reader.read(tmp_path / "inner.hiw")) == 9


def test_a_start_costs_what_any_file_like_it_does_if_nothing_is_recorded(tmp_path: Path) -> None:
    folder = next(path for path in sys.path if Path(path, "hiwater.pth").exists())
    assert "HIWATER_RUN" not in os.environ
    (tmp_path / "least.pth").write_text("import os\n")
    modules, known, best = set(sys.modules), set(sys.path), {"hiwater.pth": 1 << 62, "least.pth": 1 << 62}
    for _ in range(200):
        for name, of in (("hiwater.pth", folder), ("least.pth", str(tmp_path))):
            began = time.thread_time_ns()
            site.addpackage(of, name, known)
            best[name] = min(best[name], time.thread_time_ns() - began)
    assert set(sys.modules) == modules
    assert best["hiwater.pth"] <= 3 * best["least.pth"]


def test_forks_beside_threads_that_allocate_all_end_and_are_recorded(tmp_path: Path) -> None:
    """`make test-long WORDS=forks` makes 100,000 of them."""
    text = """
        import ctypes, os, threading, time
        allocate = ctypes.CDLL({library!r}).allocate_and_free
        def allocate_for_ever():
            while True:
                allocate(ctypes.c_size_t(1000))
                [bytearray(i) for i in range(0, 2000, 100)]
        for _ in range(3):
            threading.Thread(target=allocate_for_ever, daemon=True).start()
        for number in range({count}):
            child = os.fork()
            if child == 0:
                held = bytearray(100_000)
                os._exit(number)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number
        os._exit(0)
    """.format(library=str(compiled.library("long")), count=rounds(150))
    run = record(tmp_path, text)
    ended = [row for row in rows(run) if row["event"] == "ended"]
    assert [row["exit_code"] for row in ended] == list(range(rounds(150)))
    assert all(row["total_bytes"] >= 100_000 for row in ended)


@pytest.mark.once
@pytest.mark.parametrize(
    ("prevent", "why"),
    [
        ("os.chmod('run.hiw.d', 0o500); os.setgid(65534); os.setuid(65534)", "Permission denied"),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))", "File too large"),
    ],
    ids=["rights", "size"],
)
def test_children_that_cannot_be_recorded_are_named(tmp_path: Path, prevent: str, why: str) -> None:
    if why == "Permission denied" and os.geteuid() != 0:
        pytest.skip("only root may change its user")
    tmp_path.chmod(0o755)
    text = f"""
        import os, sys
        os.waitpid(os.fork() or os._exit(0), 0)
        {prevent}
        codes = [os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(number), 0)[1]) for number in range(3)]
        sys.exit(codes != [0, 1, 2])
    """
    run = hiwater.open_run(record(tmp_path, text))
    assert len(run.captures) == 2
    assert [(one.pid, one.parent_pid, one.program) for one in run.unrecorded] == [
        (0, run.captures[0].process.pid, "program.py (a fork)")
    ] * 3
    assert {one.why for one in run.unrecorded} == {f"its recording could not begin ({why})"}


def test_a_recording_in_python_records_children_if_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    text = """
        import os, subprocess, sys
        import child, hiwater

        def run_children():
            os.waitpid(os.fork() or os._exit(child.work(11) or 0), 0)
            subprocess.run([sys.executable, "child.py", "12"], check=True)

        with hiwater.record("run.hiw", children=True):
            run_children()
        run_children()
        with hiwater.record("alone.hiw"):
            run_children()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(text)], cwd=tmp_path, env=child_environment(), check=True)

    assert sorted(taken(capture) for capture in captures_of_children(tmp_path / "run.hiw")) == [11, 12]
    assert not (tmp_path / "alone.hiw.d").exists()


AGES = """
import json, os, sys, time
holds, began, seen = int(sys.argv[1]), time.monotonic(), [(0, 0)]
pid = os.fork()
if pid == 0:
    held = [bytes(1 << 20) for _ in range(holds)]
    while seen[-1][1] < 2 and seen[-1][0] < 60:
        {"name": str(began)}
        threads = len(os.listdir("/proc/self/task"))  # first: the child may lose the processor in between
        seen.append((time.monotonic() - began, threads))
    with open("seen.json", "w") as file:
        json.dump(seen[1:], file)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.once
@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")])
def test_the_recorders_thread_of_a_forked_child_begins_once_the_child_is_worth_it(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "ages.py").write_text(AGES)

    def age_at_begin(holds: int) -> float:
        done = run_hiwater("run", "-q", *options, "-o", "run.hiw", "ages.py", str(holds), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        *before, (begins, threads) = json.loads((tmp_path / "seen.json").read_text())
        assert threads == 2
        assert {threads for _, threads in before} <= {1}
        return begins

    assert age_at_begin(0) >= 0.095  # it was read just before
    ages = []
    # On a busy machine a child may be older when it has its turn.
    while len(ages) < 60 and min(ages, default=1.0) >= 0.095:
        ages.append(age_at_begin(32))
    assert 0.015 <= min(ages) < 0.095


GROWS = """
import ctypes, os, sys, time
malloc = ctypes.CDLL(None).malloc
allocate = {"object": bytes, "resized": bytearray, "native": lambda size: malloc(ctypes.c_size_t(size))}[sys.argv[1]]
began = time.monotonic()
pid = os.fork()
if pid == 0:
    held = [allocate(1 << 20) for _ in range(16)]
    while len(os.listdir("/proc/self/task")) < 2 and time.monotonic() < began + 10:
        held.append(allocate(1 << 20))
        time.sleep(0.001)
    with open("age", "w") as file:
        file.write(str(time.monotonic() - began))
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.once
@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")])
@pytest.mark.parametrize("kind", ["object", "resized", "native"])
def test_the_recorders_thread_begins_in_a_forked_child_that_makes_few_objects_and_grows(
    tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "grows.py").write_text(GROWS)

    ages = []  # on a busy machine a child may be older
    while len(ages) < 60 and min(ages, default=1.0) >= 0.095:
        run_hiwater("run", "-q", *options, "-o", "run.hiw", "grows.py", kind, folder=tmp_path, check=True)
        ages.append(float((tmp_path / "age").read_text()))
    assert min(ages) < 0.095


START_A_CHILD = {
    "fork": "child = os.fork() or signal.pause()",
    "subprocess": "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid",
    "after fork hooks": (
        "os.register_at_fork(after_in_parent=lambda: sorted('hooks')); child = os.fork() or signal.pause()"
    ),
}


@pytest.mark.once
@pytest.mark.parametrize("start", START_A_CHILD.values(), ids=list(START_A_CHILD))
def test_a_program_that_only_waits_for_its_child_is_still_watched(tmp_path: Path, start: str) -> None:
    """For it, there are samples, last words and answers to requests. It asks for no memory, and its recorder's
    thread ended before the fork."""
    waits = f"""
        import os, signal, subprocess
        read = os.read
        print("ready", flush=True)
        {start}
        try:
            read(0, 1)
        finally:
            os.kill(child, 9)
    """
    with recording(tmp_path, waits, "-o", "run.hiw") as process:
        wait_until(lambda: children_of(process.pid))
        wait_until(lambda: "hiwater" in thread_names(process.pid))
        assert process.stdin is not None
        process.stdin.write("go on")
        process.stdin.flush()
        assert process.wait(PATIENCE_SECONDS) == 0


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def thread_names(pid: int) -> list[str]:
    names = []
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            names.append(path.read_text().strip())
    return names
