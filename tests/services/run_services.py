"""Runs real services plain, recorded exactly and sampled, under the same load on loopback, and compares them: `make
test-services`.

Each answer is checked, each run must be one report of all its processes, and viewers come and go while the services
work. A recorded service and a plain one run side by side and get requests in turn, few each time, since other work on
the machine changes their times. Each service is started several times, with another environment and other hashes: where
its memory lies makes it two or three percent faster or slower (T. Mytkowicz et al., "Producing wrong data without doing
anything obviously wrong!", 2009). A ratio is the geometric mean over the starts of the ratio of their medians (p50).
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import pty
import random
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hiwater
import service_work
from hiwater._os import procfs
from hiwater._os.process_identity import stat_fields

HERE = Path(__file__).parent
PATIENCE_SECONDS = 300
MODES = {"exact": (), "sampled": ("--sample", "64KiB")}
MOST = {"exact": 1.3, "sampled": 1.05}
# How many requests follow each other. Each client of a queue, and each program that ends by itself, takes a second to
# start.
BURST = {"http": 20, "queue": 200, "script": 200}


@dataclass(frozen=True)
class Service:
    """`words` follow `python`; {port} is replaced. `processes` are at least in the run."""

    name: str
    package: str
    words: tuple[str, ...]
    processes: int
    load: str  # http, queue or script


# All servers of a user would have one control socket, and those of the three modes run at once.
GUNICORN = ("-m", "gunicorn", "-w", "4", "-b", "127.0.0.1:{port}", "--log-level", "error", "--no-control-socket")
SERVICES = (
    Service("standard library", "wsgiref", ("web_prefork.py", "{port}"), 5, "http"),
    Service("gunicorn", "gunicorn", (*GUNICORN, "web_wsgi:application"), 5, "http"),
    Service("gunicorn --preload", "gunicorn", (*GUNICORN, "--preload", "web_wsgi:application"), 5, "http"),
    Service("uvicorn", "uvicorn", ("-m", "uvicorn", "--workers", "2", "--port", "{port}", "--log-level", "error",
        "web_asgi:application"), 3, "http"),
    Service("celery", "celery", ("-m", "celery", "-A", "queue_tasks", "worker", "-P", "prefork", "-c", "4", "-l",
        "error", "--without-gossip", "--without-mingle", "--without-heartbeat"), 5, "queue"),
    Service("joblib", "joblib", ("pool_joblib.py",), 5, "script"),
    Service("DataLoader", "torch", ("pool_torch.py",), 5, "script"),
)  # fmt: skip


@dataclass
class Found:
    """What became of a service: its times in each turn of each start, plain and recorded, and everything that was
    wrong."""

    mode: str
    times: list[dict[str, list[float]]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    processor_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    answers: int = 0
    processes: int = 0
    viewers: int = 0

    def check(self, numbers: list[int], answers: list[tuple[int, float]], mode: str) -> None:
        """Compare answers with what they must be, and keep the p50 of their times."""
        right = [total for total, _ in answers] == [service_work.expected(number) for number in numbers]
        if not right:
            self.wrong.append(f"{mode}: an answer is wrong or missing")
        self.answers += len(answers)
        self.times[-1][mode].append(statistics.median(took for _, took in answers))

    @property
    def modes(self) -> tuple[str, str]:
        return "plain", self.mode

    def p50(self, mode: str) -> float:
        return statistics.geometric_mean(statistics.median(start[mode]) for start in self.times)

    def ratio(self) -> tuple[float, float]:
        """How many times as long a recorded service takes, and the standard error of that."""
        ratios = [statistics.median(start[self.mode]) / statistics.median(start["plain"]) for start in self.times]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        return statistics.geometric_mean(ratios), error

    def environment(self, mode: str) -> dict[str, str]:
        number = len(self.times)
        padding = "." * random.Random(f"{mode} {number}").randrange(4096)
        return environment() | {"PYTHONHASHSEED": str(number), "PADDING": padding}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIWATER")}
    return kept | {"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}


def command(service: Service, mode: str, port: int = 0, *more: str) -> list[str]:
    options = MODES.get(mode)
    words = [word.format(port=port) for word in service.words]
    if words[0].endswith(".py"):
        words[0] = str(HERE / words[0])
    recorder = [] if options is None else ["-m", "hiwater", "run", "-q", *options, "-o", "run.hiw"]
    return [sys.executable, *recorder, *words, *more]


# --- load -------------------------------------------------------------------------------------------------------------


def ask(port: int, number: int) -> tuple[int, float]:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"/?{number}")
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        return -1, 0.0
    return json.loads(body), (time.perf_counter() - began) * 1e3


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_until(happened: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)


def answers_at(port: int) -> bool:
    try:
        return ask(port, 1)[0] == service_work.expected(1)
    except OSError:
        return False


@contextmanager
def running(words: list[str], folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stopped(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How the service ends when it is asked to: its exit code, and what it says."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said


# --- services ---------------------------------------------------------------------------------------------------------


def serve(service: Service, folders: dict[str, Path], found: Found, requests: int, viewers: int) -> None:
    """Services that answer until they are stopped."""
    ports = {mode: free_port() for mode in found.modes}
    with ExitStack() as stack:
        processes = {
            mode: stack.enter_context(
                running(command(service, mode, ports[mode]), folders[mode], found.environment(mode))
            )
            for mode in found.modes
        }

        size = min(BURST[service.load], requests)

        def burst(mode: str) -> list[tuple[int, float]]:
            if service.load == "http":
                return [ask(ports[mode], number) for number in range(size)]
            return clients_answers(folders[mode], size)

        for mode in found.modes:
            wait_until(
                (lambda mode=mode: answers_at(ports[mode]))
                if service.load == "http"
                else (lambda mode=mode: clients_answers(folders[mode], 8)),
                f"{mode}: the service does not answer",
            )
        before = {mode: processor_seconds(process.pid) for mode, process in processes.items()}
        for _ in range(requests // size):
            for mode in found.modes:
                found.check(list(range(size)), burst(mode), mode)
        for mode, process in processes.items():
            found.processor_seconds[mode] += processor_seconds(process.pid) - before[mode]
        view(folders[found.mode], lambda: burst(found.mode), found, size, viewers)
        endings = {mode: stopped(process) for mode, process in processes.items()}
    if len(set(endings.values())) != 1:
        found.wrong.append(f"the services ended differently: {endings}")


def processor_seconds(pid: int) -> float:
    """The processor's time so far of a process and its descendants, without the threads of recorders, whose time
    depends on how long it all takes."""
    ticks = 0
    for one in (pid, *procfs.descendants_of(pid)):
        for thread in os.listdir(f"/proc/{one}/task"):
            try:
                if Path(f"/proc/{one}/task/{thread}/comm").read_text().startswith("hiwater"):
                    continue
                fields = stat_fields(int(thread), proc=f"/proc/{one}/task")
            except OSError:  # it has ended since, with what it took
                continue
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def clients_answers(folder: Path, count: int) -> list[tuple[int, float]]:
    words = [sys.executable, str(HERE / "queue_client.py"), str(count)]
    done = subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    return [(total, took) for total, took in json.loads(done.stdout)] if done.returncode == 0 else []


def repeat(service: Service, folders: dict[str, Path], found: Found, requests: int) -> None:
    """Programs that end by themselves, one mode after the other."""
    size = min(BURST[service.load], requests)
    for _ in range(requests // size):
        for mode, folder in folders.items():
            done = subprocess.run(
                command(service, mode, 0, str(size)), cwd=folder, env=found.environment(mode), capture_output=True,
                text=True, check=False, timeout=PATIENCE_SECONDS,
            )  # fmt: skip
            if done.returncode != 0:
                found.wrong.append(f"{mode}: exit code {done.returncode}: {done.stderr[-500:]}")
                return
            found.check(list(range(size)), json.loads(done.stdout), mode)


# --- viewers and reports ----------------------------------------------------------------------------------------------


def view(folder: Path, burst: Callable[[], list[tuple[int, float]]], found: Found, size: int, viewers: int) -> None:
    """`hiwater live` comes and leaves that often, while the service goes on answering."""
    failed: list[str] = []

    def watch() -> None:
        for _ in range(viewers):
            problem = visit(folder / "run.hiw")
            if problem:
                failed.append(problem)
            else:
                found.viewers += 1

    viewer = threading.Thread(target=watch)
    viewer.start()
    while viewer.is_alive():
        answers = burst()
        found.answers += len(answers)
        if [total for total, _ in answers] != [service_work.expected(number) for number in range(size)]:
            found.wrong.append("an answer is wrong or missing while a viewer was there")
            break
    viewer.join()
    found.wrong += failed


def visit(capture: Path) -> str:
    """One viewer: waits for the first screen, and leaves. Returns what was wrong."""
    outer, inner = pty.openpty()
    words = [sys.executable, "-m", "hiwater", "live", "--plain", str(capture)]
    viewer = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, env=environment() | {"TERM": "xterm"})
    os.close(inner)
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while b"allocated" not in seen and time.monotonic() < until and viewer.poll() is None:
        if select.select([outer], [], [], 0.1)[0]:
            try:
                seen += os.read(outer, 65536)
            except OSError:
                break
    try:
        os.write(outer, b"q")
        code = viewer.wait(PATIENCE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        viewer.kill()
        code = viewer.wait()
    os.close(outer)
    return "" if code == 0 and b"allocated" in seen else f"a viewer ended with {code}: {seen[-300:]!r}"


def inspect(service: Service, folder: Path, found: Found) -> None:
    """One report of all processes, sound, with nothing missing."""
    run = hiwater.open_run(folder / "run.hiw")
    count = len(run.captures) + len(run.short)
    found.processes = max(found.processes, count)
    if count < service.processes:
        found.wrong.append(f"{count} processes in the run, at least {service.processes} were expected")
    if run.unreadable or run.unrecorded:
        found.wrong.append(f"unreadable {run.unreadable}, not recorded {run.unrecorded}")
    for capture in run.captures:
        process = capture.process
        problems = [*capture.problems(), *([process.stop_reason] if process.stop_reason else [])]
        if problems or capture.lost_events:
            found.wrong.append(f"process {process.pid}: {problems}, {capture.lost_events} events lost")
        if process.ended == "recording":
            found.wrong.append(f"process {process.pid} still runs")
    done = subprocess.run(
        [sys.executable, "-m", "hiwater", "report", "run.hiw"], cwd=folder, env=environment(), capture_output=True,
        text=True, check=False
    )  # fmt: skip
    if done.returncode != 0 or "Processes" not in done.stdout:
        found.wrong.append(f"the report failed: {done.stderr[-500:]}")


def measure(service: Service, mode: str, requests: int, viewers: int, times: int = 1) -> Found:
    """Start a service and a plain one `times` times, the first time with viewers, and say what became of it. Folders of
    a service with problems stay."""
    found = Found(mode)
    for number in range(times):
        top = Path(tempfile.mkdtemp(prefix="hiwater-services-"))
        measure_once(service, top, found, requests, viewers if number == 0 else 0)
        if found.wrong:
            break
        shutil.rmtree(top)
    return found


def measure_once(service: Service, top: Path, found: Found, requests: int, viewers: int) -> None:
    found.times.append({mode: [] for mode in found.modes})
    folders = {mode: top / mode for mode in found.modes}
    for folder in folders.values():
        folder.mkdir()
    try:
        if service.load == "script":
            repeat(service, folders, found, requests)
        else:
            serve(service, folders, found, requests, viewers)
        if not found.wrong:
            inspect(service, folders[found.mode], found)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        found.wrong.append(f"{type(error).__name__}: {error}")


def show(service: Service, found: Found) -> None:
    are_all = all(start[mode] for start in found.times for mode in found.modes)
    ratio = ""
    if are_all:
        ratio = "p50 {:.2f} ms plain, {} × {:.3f} ± {:.3f}".format(found.p50("plain"), found.mode, *found.ratio())
    print(
        f"{service.name:<20} {found.answers:>6} answers, {found.processes} processes, {found.viewers} viewers, {ratio}",
        flush=True,
    )
    if found.processor_seconds:
        before, after = (found.processor_seconds[name] for name in found.modes)
        print(
            f"{'':<20} processor's time of all its processes, without the recorder's threads: {before:.2f} s plain, "
            f"{found.mode} × {after / before:.3f}",
            flush=True,
        )
    for problem in found.wrong:
        print(f"  wrong: {problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="services (default: all)")
    parser.add_argument("--times", type=int, default=8, help="that each service is started")
    parser.add_argument("--requests", type=int, default=800, help="each time, of each of the two")
    parser.add_argument("--viewers", type=int, default=10, help="that come and leave while the first one answers")
    parser.add_argument(
        "--no-limits", action="store_true", help="print the ratios, and do not compare them with their limits"
    )
    arguments = parser.parse_args()
    failed = False
    for service in SERVICES:
        if arguments.names and service.name not in arguments.names:
            continue
        if importlib.util.find_spec(service.package) is None:
            print(f"{service.name}: {service.package} is not installed")
            failed = True
            continue
        for mode in MODES:
            found = measure(service, mode, arguments.requests, arguments.viewers, arguments.times)
            if not arguments.no_limits and not found.wrong and found.ratio()[0] > MOST[mode]:
                found.wrong.append(f"the p50 ratio is above {MOST[mode]}")
            show(service, found)
            failed |= bool(found.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
