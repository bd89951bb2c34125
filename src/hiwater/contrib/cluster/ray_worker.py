"""Ray, in the recorded worker process: what its setup hook calls. Standard library and the native module only."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from hiwater._os import procfs
from hiwater.contrib.cluster import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

VARIABLE = "HIWATER_RAY"
"""In the environment of a job's workers: JSON with "sample", "limit" and the user's own "hook"; or OFF."""
OFF = "off"
WHY_SUFFIX = ".why"
"""Of the file that says why a worker has no capture, beside where it would be."""

_IDLE = "ray::IDLE"
_MOST_NAMES = 200  # of tasks; programs may name each task
_FURTHER = "tasks with further names"
_MEMORY_SECONDS = 1.0  # from one reading of the process's shared memory to the next


def setup() -> None:
    """Record this worker process: Ray calls `hiwater.ray.setup` as `worker_process_setup_hook`, which
    `hiwater.ray.env()` sets. Then call the user's own hook. Nothing of the recording raises; what the user's hook
    raises passes."""
    asked = os.environ.get(VARIABLE, "{}")
    if asked == OFF:
        return
    try:
        options = json.loads(asked)
    except ValueError:
        options = {}
    with suppress(Exception):  # whatever it is, the worker goes on unrecorded
        _record(options)
    if options.get("hook"):
        _load(options["hook"])()


class Both:
    """The setup hook of a job whose own is a callable: ours, then theirs. Ray sends it to the workers as it sends
    theirs."""

    def __init__(self, theirs: Callable[[], object]) -> None:
        self.theirs = theirs
        self.__name__ = getattr(theirs, "__name__", "setup")

    def __call__(self) -> None:
        """Called by Ray in each worker process when it starts."""
        setup()
        if os.environ.get(VARIABLE) != OFF:
            self.theirs()


def folder(node: Any, job: str) -> str:
    """The folder for a job's captures on this node: in the logs of Ray's session, which survive workers."""
    return os.path.join(node.get_logs_dir_path(), "hiwater", job)


def _load(path: str) -> Callable[[], object]:
    import importlib

    module, _, name = path.rpartition(".")
    hook: Callable[[], object] = getattr(importlib.import_module(module), name)
    return hook


def _record(options: dict[str, Any]) -> None:
    # Ray has no public interface for these: the session's folder of logs, and the end of a task.
    import ray
    from ray._private import worker as process

    context = ray.get_runtime_context()
    place = folder(process._global_node, context.get_job_id())
    path = os.path.join(place, f"{context.get_node_id()[:12]}.{os.getpid()}-{time.time_ns() // 1_000_000}.hiw")
    begun = worker.start(
        path.replace("%", "%%"),
        engine="ray",
        worker="worker",
        sample=options.get("sample", worker.SAMPLE),
        limit=options.get("limit"),
    )
    if begun.why:
        with open(path + WHY_SUFFIX, "w", encoding="utf-8") as file:
            file.write(begun.why)
    if begun.path and hasattr(process, "_changeproctitle"):
        process._changeproctitle = Tasks(process._changeproctitle, context)


class Tasks:
    """Takes the place of the function by which Ray gives the process a title while a task runs: the first thing that
    Ray calls for a task, and the last. Each task is a phase. The first task of an actor gives the worker its name."""

    def __init__(self, title: Callable[[str, str], AbstractContextManager[None]], context: Any) -> None:
        self._title, self._context = title, context
        self._names: set[str] = set()
        self._is_named = False
        self._memory_read = 0.0
        self._most_shared = 0

    def __call__(self, title: str, next_title: str) -> AbstractContextManager[None]:
        """`title` is that of the task, `next_title` that of the worker after it: an actor's has the name of its
        class."""
        if next_title != _IDLE and not self._is_named:
            self._is_named = True
            self._name_worker(next_title.removeprefix("ray::"))
        name = title.removeprefix("ray::")
        if name.endswith(".__init__"):
            name = name.rpartition(":")[2]  # an actor's own name stands before its class's
        if name not in self._names:
            if len(self._names) < _MOST_NAMES:
                self._names.add(name)
            else:
                name = _FURTHER
        return Task(self, self._title(title, next_title), name)

    def _name_worker(self, actor_class: str) -> None:
        try:
            name = self._context.get_actor_name()
        except Exception:  # noqa: BLE001 - the class is name enough
            name = None
        worker.relabel(f"{actor_class} {name}" if name else actor_class)

    def note_memory(self) -> None:
        """Note the process's shared memory, most of which is Ray's object store, where it is the highest seen. It is
        read once a second at most."""
        now = time.monotonic()
        if now - self._memory_read < _MEMORY_SECONDS:
            return
        self._memory_read = now
        resident, shared = _resident_and_shared()
        if shared > self._most_shared:
            self._most_shared = shared
            own = {"process_bytes": resident, "object_store_bytes": shared}
            worker.note("engine_memory", json.dumps(own))


class Task:
    """One task: a phase around what Ray does for it."""

    __slots__ = ("_name", "_tasks", "_title", "_token")

    def __init__(self, tasks: Tasks, title: Any, name: str) -> None:
        self._tasks, self._title, self._name, self._token = tasks, title, name, 0

    def __enter__(self) -> None:
        self._token = worker.phase_begin(self._name)
        self._title.__enter__()

    def __exit__(self, *error: object) -> Any:
        try:
            return self._title.__exit__(*error)
        finally:
            worker.phase_end(self._token)
            self._tasks.note_memory()


def _resident_and_shared() -> tuple[int, int]:
    """Bytes of this process in RAM, and of those the shared memory (RssShmem)."""
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
        return max(0, procfs.field_bytes(text, b"\nVmRSS:")), max(0, procfs.field_bytes(text, b"\nRssShmem:"))
    except (OSError, ValueError, IndexError):
        return 0, 0
