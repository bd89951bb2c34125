"""The recipes of docs/clusters.md: each snippet as it stands there, in the real tool."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import hiwater
from children import run_python
from recording import child_environment, needs_engine
from waiting import wait_until

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
GUARD_SECONDS = 300
KEPT = 5_000_000

pytestmark = [needs_engine, pytest.mark.slow]


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def snippet(heading: str, language: str) -> str:
    """The first block of code in this language below a heading of the pages with recipes."""
    pages = "".join((DOCS / page).read_text() for page in ("clusters.md", "containers.md"))
    _, _, section = pages.partition(f" {heading}\n")
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def in_child(folder: Path, *words: str, **environment: str) -> str:
    done = run_python(*words, folder=folder, env={**child_environment(), **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs("celery")
def test_celery(tmp_path: Path) -> None:
    for name in ("queue", "results", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "tasks.py").write_text(
        textwrap.dedent(f"""
            import os
            from celery import Celery

            app = Celery("tasks", broker="filesystem://", backend="file://{tmp_path}/results")
            app.conf.broker_transport_options = {{
                "data_folder_in": "{tmp_path}/queue", "data_folder_out": "{tmp_path}/queue",
                "control_folder": "{tmp_path}/control"
            }}
            kept = []


            @app.task
            def leak(size):
                kept.append(b"x" * size)
                return os.getpid()
        """)
        + snippet("Celery", "python")
    )
    ask = (
        f"import tasks; print(*{{leak.get(timeout={GUARD_SECONDS}) for leak in [tasks.leak.delay({KEPT}) for _ in "
        f"range(4)]}})"
    )
    words = ["-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--without-gossip", "--without-mingle"]
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=child_environment()) as workers:
        try:
            pids = [int(word) for word in in_child(tmp_path, "-c", ask).split()]
        finally:
            workers.send_signal(signal.SIGTERM)
        wait_until(lambda: workers.poll() is not None)
    captures = {one.process.pid: one for one in hiwater.open_run(tmp_path / "captures").captures}
    assert set(pids) <= set(captures)
    phases = [scope for pid in pids for scope in captures[pid].scopes]
    assert [scope.name for scope in phases] == ["tasks.leak"] * 4
    assert all((scope.allocated_end_bytes or 0) - (scope.allocated_start_bytes or 0) >= KEPT for scope in phases)
    assert all(captures[pid].facts["engine"] == "celery" and captures[pid].process.ended == "exit" for pid in pids)


@needs("prefect")
def test_prefect(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    (tmp_path / "flow.py").write_text(snippet("Prefect 3", "python") + "\n\nprint('count', etl())\n")
    told = in_child(
        tmp_path, "flow.py",
        PREFECT_HOME=str(tmp_path / "home"), PREFECT_SERVER_ANALYTICS_ENABLED="false", DO_NOT_TRACK="1",
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=str(GUARD_SECONDS),
    )  # fmt: skip
    assert "count 100000" in told
    (path,) = (tmp_path / "captures").glob("etl.*.hiw")
    (phase,) = (scope for scope in hiwater.open(path).scopes if scope.name == "load")
    assert (phase.allocated_peak_bytes or 0) - (phase.allocated_start_bytes or 0) > 100_000 * 50


@needs("airflow")
def test_airflow(tmp_path: Path) -> None:
    for name in ("plugins", "dags", "captures"):
        (tmp_path / name).mkdir()
    plugin = snippet("Airflow 3", "python")
    assert plugin.count("/shared/captures") == 1
    (tmp_path / "plugins" / "record.py").write_text(plugin.replace("/shared/captures", str(tmp_path / "captures")))
    (tmp_path / "dags" / "etl.py").write_text(
        textwrap.dedent(f"""
            from airflow.sdk import dag, task

            kept = []


            @dag(schedule=None)
            def etl():
                @task
                def load():
                    kept.append(b"x" * {KEPT})

                load()


            made = etl()
            if __name__ == "__main__":
                print("state", made.test().state)
        """)
    )
    settings = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    in_child(tmp_path, "-m", "airflow", "db", "migrate", **settings)
    assert "state success" in in_child(tmp_path, "dags/etl.py", **settings)
    (capture,) = hiwater.open_run(tmp_path / "captures").captures
    assert capture.facts["worker"] == "etl.load" and capture.peak.allocated_bytes >= KEPT


@needs("yaml")
def test_kubernetes(tmp_path: Path) -> None:
    import yaml

    pod: dict[str, Any] = yaml.safe_load(snippet("How do I record a pod of Kubernetes?", "yaml"))
    (brought,), (container,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    for one in (brought, container):
        assert {mount["name"] for mount in one["volumeMounts"]} <= set(volumes)
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert "persistentVolumeClaim" in mounts["/captures"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["HIWATER_LAST_WORDS"] == container["terminationMessagePath"]
    assert environment["PYTHONPATH"] == brought["command"][brought["command"].index("--target") + 1]
    python, *words = container["command"]
    assert python == "python"
    (tmp_path / "main.py").write_text(f"kept = b'x' * {KEPT}\nimport os\nos.kill(os.getpid(), 9)\n")
    words = [word.replace("/captures", str(tmp_path)).replace("/app", str(tmp_path)) for word in words]
    settings = {**child_environment(), "HIWATER_LAST_WORDS": str(tmp_path / "last-words")}
    done = subprocess.run([sys.executable, *words], env=settings, timeout=GUARD_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.glob(f"{os.uname().nodename}.*.hiw")
    assert hiwater.open(path).process.ended == "killed" and hiwater.open(path).peak.allocated_bytes >= KEPT
