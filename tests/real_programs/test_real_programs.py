"""Real programs do under hiwater what they do alone: same words, same exit code, same files; and the books of each add
up.

Each runs twice in the same folder, made anew in between: under `python`, then under `hiwater run`. Those whose packages
are not among the test dependencies, or that take long, are marked `programs`: `make test-programs` installs what they
need and runs all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import faithful
from faithful import MADE_AT, MODES
from recording import needs_engine

pytestmark = needs_engine


@dataclass(frozen=True)
class Program:
    """What to run, what it needs, and which of the files it makes are the same each time."""

    words: Sequence[str]
    files: dict[str, str] = field(default_factory=dict)
    copies: Sequence[str] = ()  # installed packages whose source is put beside the program
    packages: Sequence[str] = ()
    produces: str = ""  # a pattern of files to compare
    varying: str = r"(?!)"  # lines of its output that differ from run to run
    exit_code: int = 0
    leaves_abruptly: bool = False  # by os._exit(), so that nothing can be checked at its end

    def make(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        for name in self.copies:
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            shutil.copytree(
                Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        for path in folder.rglob("*"):
            os.utime(path, (MADE_AT, MADE_AT))


def script(text: str, *packages: str, produces: str = "", exit_code: int = 0) -> Program:
    return Program(["program.py"], {"program.py": text}, packages=packages, produces=produces, exit_code=exit_code)


@dataclass(frozen=True)
class Ending:
    stdout: list[str]
    stderr: list[str]
    exit_code: int
    produced: dict[str, bytes]


def run(program: Program, folder: Path, options: Sequence[str] | None, aside: Path) -> Ending:
    """Runs the program in a folder of its own, alone where `options` is None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    program.make(folder)
    under = [] if options is None else faithful.recorder(aside, options)
    shutil.rmtree(aside / "cache", ignore_errors=True)
    for left in ("checked", "capture.hiw"):
        (aside / left).unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *under, *program.words],
        cwd=folder, env=faithful.environment(aside), capture_output=True, text=True, timeout=900, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    produced = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob(program.produces) if program.produces else ())
        if path.is_file()
    }
    return Ending(said(done.stdout, program), said(done.stderr, program), done.returncode, produced)


def said(text: str, program: Program) -> list[str]:
    """The lines that must be the same each time, times and addresses left out, and rules that are as long as a time
    leaves room for."""
    lines = [line for line in text.splitlines() if not re.search(program.varying, line)]
    return [re.sub("={2,}", "==", faithful.TIMES.sub("…", line)) for line in lines]


def same_alone_and_recorded(program: Program, tmp_path: Path) -> None:
    """In each of the modes."""
    for package in program.packages:
        if importlib.util.find_spec(package) is None:
            reason = f"{package} is not installed: `make test-programs` brings it"
            pytest.fail(reason) if os.environ.get("HIWATER_TEST_ALL_PROGRAMS") else pytest.skip(reason)
    folder = tmp_path / "program"
    alone = run(program, folder, None, tmp_path)
    assert alone.exit_code == program.exit_code, "\n".join([*alone.stdout, *alone.stderr])
    assert not program.produces or alone.produced, "the program made no files"
    assert not (tmp_path / "checked").exists()

    for mode, options in MODES.items():
        recorded = run(program, folder, options, tmp_path)

        assert recorded.exit_code == alone.exit_code, "\n".join([mode, *recorded.stdout, *recorded.stderr])
        assert recorded.stdout == alone.stdout, mode
        assert recorded.stderr == alone.stderr, mode
        assert recorded.produced.keys() == alone.produced.keys(), mode
        assert [name for name in alone.produced if recorded.produced[name] != alone.produced[name]] == [], mode
        assert faithful.unsound(tmp_path, program.exit_code, ends_abruptly=program.leaves_abruptly) == [], mode


# Of the standard library and the test dependencies: part of every test run.

ASYNCIO = """
    import asyncio

    async def answer(reader, writer):
        while line := await reader.readline():
            await asyncio.sleep(0.001)
            writer.write(line.upper() * 50)
            await writer.drain()
        writer.close()

    async def ask(port, name):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        received = 0
        for number in range(20):
            writer.write(f"{name} {number} {'x' * number}\\n".encode())
            for _ in range(50):
                received += len(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return name, received

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            print(sorted(await asyncio.gather(*(ask(port, f"client{n}") for n in range(10)))))
            total = await asyncio.to_thread(sum, range(100_000))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(500)]
            print(total, sum(task.result() for task in tasks))
        process = await asyncio.create_subprocess_exec("echo", "a child", stdout=asyncio.subprocess.PIPE)
        print(await process.communicate(), process.returncode)

    asyncio.run(main())
"""

POOL = """
    import hashlib, multiprocessing, sys
    from multiprocessing import shared_memory

    def digest(number):
        data = bytes([number % 251]) * (number * 1000)
        return number, hashlib.sha256(data).hexdigest()

    def fail(number):
        return 1 // (number - 3)

    def fill(name):
        memory = shared_memory.SharedMemory(name)
        memory.buf[:4] = b"done"
        memory.close()

    if __name__ == "__main__":
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            with context.Pool(2, maxtasksperchild=20) as pool:
                print(method, hash(tuple(pool.map(digest, range(60)))))
                print(sorted(pool.imap_unordered(abs, range(-50, 0)))[:5])
                try:
                    pool.map(fail, range(5))
                except ZeroDivisionError as error:
                    print("refused", error)
            queue, memory = context.Queue(), shared_memory.SharedMemory(create=True, size=1 << 16)
            worker = context.Process(target=fill, args=(memory.name,))
            worker.start()
            worker.join()
            print(bytes(memory.buf[:4]), worker.exitcode)
            memory.close()
            memory.unlink()
            queue.put([1] * 1000)
            print(len(queue.get()))
        with multiprocessing.Manager() as manager:
            shared = manager.dict(a=1)
            shared["b"] = [2] * 100
            print(sorted(shared.keys()))
"""

FUTURES = """
    import concurrent.futures, json, os, zlib

    def work(number):
        text = json.dumps([{"n": n, "text": "x" * (n % 30)} for n in range(number)])
        return len(zlib.compress(text.encode()))

    def die(_):
        os._exit(3)

    if __name__ == "__main__":
        for kind in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
            with kind(4) as pool:
                print(list(pool.map(work, range(0, 3000, 100))))
                futures = {pool.submit(work, n): n for n in range(40)}
                print(sum(future.result() for future in concurrent.futures.as_completed(futures)))
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            try:
                pool.submit(die, 0).result()
            except concurrent.futures.process.BrokenProcessPool as error:
                print("broken", type(error).__name__)
        raise SystemExit(7)
"""

PANDAS = """
    import numpy as np, pandas as pd

    random = np.random.default_rng(5)
    frame = pd.DataFrame({
        "key": random.integers(0, 200, 50_000), "value": random.normal(size=50_000),
        "name": random.choice(["one", "two", "three"], 50_000),
        "at": pd.date_range("2024-01-01", periods=50_000, freq="min"),
    })
    print(frame.groupby(["key", "name"])["value"].agg(["mean", "max", "count"]).round(9).head(20))
    print(frame.set_index("at")["value"].resample("D").sum().round(9).tail())
    merged = frame.merge(frame.head(500), on="key", suffixes=("", "_again"))
    print(merged.shape, merged.pivot_table(index="key", columns="name", values="value").round(6).iloc[:5])
    frame.to_csv("frame.csv")
    frame.to_pickle("frame.pickle")
    print(pd.read_csv("frame.csv").equals(pd.read_csv("frame.csv")), frame.equals(pd.read_pickle("frame.pickle")))
"""

MATPLOTLIB = """
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plot, numpy as np

    figure, axes = plot.subplots(2, 2)
    x = np.linspace(0, 10, 500)
    axes[0, 0].plot(x, np.sin(x))
    axes[0, 1].imshow(np.outer(x[:100], x[:100]))
    axes[1, 0].hist(np.random.default_rng(1).normal(size=1000), bins=30)
    axes[1, 1].scatter(x, x ** 2, c=x)
    figure.savefig("figure.png", metadata={"Software": None})
    figure.savefig("figure.svg", metadata={"Date": None})
"""

SMALL_SUITE = """
    import threading, tracemalloc
    import pytest

    @pytest.mark.parametrize("number", range(50))
    def test_passes(number, tmp_path):
        (tmp_path / "file").write_text("x" * number)
        assert len((tmp_path / "file").read_text()) == number

    def test_fails():
        expected = {"a": [1, 2, 3], "b": "text" * 20}
        assert {"a": [1, 2, 4], "b": "text" * 21} == expected

    def test_captures(capfd, monkeypatch, recwarn):
        print("out")
        monkeypatch.setattr(threading, "TIMEOUT_MAX", 5)
        assert capfd.readouterr().out == "out\\n"

    @pytest.fixture
    def broken():
        yield
        raise ValueError("in teardown")

    def test_errors(broken):
        pass

    @pytest.mark.xfail(reason="not yet")
    def test_expected():
        assert not tracemalloc.is_tracing() and False
"""

SQLITE = """
    import contextlib, ctypes, decimal, email, gzip, lzma, pathlib, re, sqlite3, tarfile, xml.etree.ElementTree as tree

    connection = sqlite3.connect("base.sqlite")
    connection.create_function("twice", 1, lambda n: 2 * n)
    with connection:
        connection.execute("create table t (a integer primary key, b text)")
        connection.executemany("insert into t values (?, ?)", ((n, str(n) * 20) for n in range(20_000)))
    print(connection.execute("select sum(twice(a)), count(distinct substr(b, 1, 2)) from t").fetchall())
    connection.close()
    root = tree.fromstring("<r>" + "".join(f"<i n='{n}'>{n * n}</i>" for n in range(5000)) + "</r>")
    print(sum(int(item.text) for item in root.iter("i")))
    pathlib.Path("text.xz").write_bytes(lzma.compress(tree.tostring(root)))
    pathlib.Path("text.gz").write_bytes(gzip.compress(tree.tostring(root), mtime=0))
    print(len(re.findall(r"(\\d)\\1", tree.tostring(root, encoding="unicode"))))
    decimal.getcontext().prec = 500
    print(decimal.Decimal(2).sqrt())

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    def compare(a, b):
        return str(a[0]) < str(b[0]) or -1

    numbers = (ctypes.c_int * 500)(*(n * 7919 % 1009 for n in range(500)))
    ctypes.CDLL(None).qsort(numbers, 500, ctypes.sizeof(ctypes.c_int), compare)
    print(list(numbers[:10]))
    with contextlib.redirect_stdout(open("said.txt", "w")):
        import this
"""

CHEAP = {
    "asyncio": script(ASYNCIO),
    "multiprocessing": script(POOL),
    "concurrent.futures": script(FUTURES, exit_code=7),
    "standard library": script(SQLITE, produces="*.[tgx]*"),
    "pandas": script(PANDAS, "pandas", produces="frame.*"),
    "matplotlib": script(MATPLOTLIB, "matplotlib", produces="figure.png"),
    "pytest": Program(
        ["-m", "pytest", "--disable-plugin-autoload", "-p", "no:cacheprovider", "--basetemp=made", "test_small.py"],
        {"test_small.py": SMALL_SUITE},
        packages=["pytest"],
        exit_code=1,
    ),
}


@pytest.mark.parametrize("name", CHEAP)
def test_of_the_standard_library_and_its_neighbours(name: str, tmp_path: Path) -> None:
    same_alone_and_recorded(CHEAP[name], tmp_path)


# The others: `make test-programs`.

FLASK = """
    import logging
    from flask import Flask, abort, jsonify, render_template_string, request, session

    app = Flask(__name__)
    app.secret_key = "fixed"

    @app.route("/hello/<name>")
    def hello(name):
        session["seen"] = session.get("seen", 0) + 1
        rows = [{"n": n, "square": n * n} for n in range(200)]
        return render_template_string(
            "{% for row in rows %}<p>{{ row.n }}: {{ row.square }} {{ name }}</p>{% endfor %}",
                                      rows=rows, name=name)

    @app.post("/sum")
    def total():
        return jsonify(total=sum(request.get_json()["numbers"]), seen=session.get("seen"))

    @app.route("/fail")
    def fail():
        abort(418)

    client = app.test_client()
    for number in range(100):
        page = client.get(f"/hello/<visitor {number}>")
        assert page.status_code == 200
        print(page.status, len(page.data), client.post("/sum", json={"numbers": list(range(number))}).get_json())
    print(client.get("/fail").status, client.get("/nowhere").status)
"""

SKLEARN = """
    import numpy as np
    from sklearn.cluster import KMeans
    from sklearn.datasets import make_classification
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = make_classification(3000, 20, random_state=3)
    for model in (
        make_pipeline(StandardScaler(), PCA(10), LogisticRegression()),
        RandomForestClassifier(40, random_state=1, n_jobs=2),
        HistGradientBoostingClassifier(max_iter=20, random_state=1),
    ):
        print(type(model).__name__, cross_val_score(model, x, y, cv=3).round(6))
    print(np.sort(KMeans(5, n_init=2, random_state=0).fit(x).cluster_centers_[:, 0]).round(6))
    print(cross_val_score(LogisticRegression(), x, y, cv=4, n_jobs=2).round(6))
"""

GEVENT = """
    from gevent import monkey
    monkey.patch_all()
    import gevent, gevent.pool, gevent.queue, gevent.server, socket, threading, time

    def serve(connection, _address):
        for line in connection.makefile("rb"):
            gevent.sleep(0.001)
            connection.sendall(line.upper())

    server = gevent.server.StreamServer(("127.0.0.1", 0), serve)
    server.start()

    def ask(number):
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            answers = connection.makefile("rb")
            received = []
            for turn in range(10):
                connection.sendall(f"client {number} turn {turn} {'x' * number}\\n".encode())
                received.append(answers.readline())
            return number, len(b"".join(received))

    print(gevent.pool.Pool(20).map(ask, range(60)))
    queue, done = gevent.queue.Queue(maxsize=5), []

    def produce():
        for number in range(200):
            queue.put([number] * 50)
        queue.put(None)

    def consume():
        while (item := queue.get()) is not None:
            done.append(sum(item))

    gevent.joinall([gevent.spawn(produce), gevent.spawn(consume)], raise_error=True)
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(len(done), sum(done), gevent.get_hub().threadpool.apply(sum, (range(1000),)))
    server.stop()
"""

CYTHON_MODULE = """
    # cython: language_level=3
    from libc.stdlib cimport malloc, realloc, free
    from cython.parallel cimport prange

    cdef class Stack:
        cdef long* numbers
        cdef size_t count, room

        def __dealloc__(self):
            free(self.numbers)

        cpdef push(self, long number):
            if self.count == self.room:
                self.room = 2 * self.room + 1
                self.numbers = <long*> realloc(self.numbers, self.room * sizeof(long))
            self.numbers[self.count] = number
            self.count += 1

        def total(self):
            cdef long sum = 0
            cdef size_t i
            for i in range(self.count):
                sum += self.numbers[i]
            return sum

    def squares(int n):
        for i in range(n):
            yield i * i

    def unlocked(int rounds):
        cdef int i
        cdef char* block
        cdef long long sum = 0
        with nogil:
            for i in range(rounds):
                block = <char*> malloc(100 + i % 1000)
                block[0] = i % 100
                sum += block[0]
                free(block)
        return sum

    def fails():
        raise ValueError("from Cython")
"""
CYTHON = """
    import os, sys, sysconfig
    from Cython.Build import cythonize
    from setuptools import Extension
    from setuptools.dist import Distribution

    modules = cythonize([Extension("fast", ["fast.pyx"])], quiet=True)
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.inplace, command.verbose = True, False
    command.ensure_finalized()
    command.run()
    sys.path.insert(0, os.getcwd())
    import threading, traceback
    import fast

    stack = fast.Stack()
    for number in range(100_000):
        stack.push(number)
    print(stack.total(), sum(fast.squares(1000)))
    write = sys.stdout.write  # at once: print() writes the end of a line by itself, and threads would mix them
    threads = [threading.Thread(target=lambda: write(f"{fast.unlocked(50_000)}\\n")) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    try:
        fast.fails()
    except ValueError:
        traceback.print_exc()
"""

POLARS = """
    import datetime, numpy as np, polars as pl

    random = np.random.default_rng(7)
    frame = pl.DataFrame({"key": random.integers(0, 500, 200_000), "value": random.integers(0, 1000, 200_000),
                          "name": random.choice(["one", "two", "three"], 200_000)})
    lazy = frame.lazy().filter(pl.col("value") > 100).group_by("key", "name").agg(
        pl.col("value").sum().alias("sum"), pl.len().alias("count"), pl.col("value").quantile(0.9).alias("high"))
    print(lazy.sort("key", "name").collect().head(10))
    joined = frame.join(frame.unique("key", keep="first", maintain_order=True), on="key")
    print(joined.select(pl.len(), pl.col("value_right").sum()))
    rests = pl.col("value").map_elements(lambda n: n % 7, return_dtype=pl.Int64)
    print(frame.lazy().with_columns(rests).sum().collect()["value"])
    frame.write_parquet("frame.parquet")
    print(pl.read_parquet("frame.parquet").equals(frame),
        pl.scan_parquet("frame.parquet").select(pl.col("key").max()).collect().item())
    print(pl.SQLContext(t=frame).execute("select name, sum(value) s from t group by name order by name").collect())
"""

ARROW = """
    import numpy as np, pyarrow as pa, pyarrow.compute as pc, pyarrow.csv, pyarrow.dataset as ds, pyarrow.parquet as pq

    random = np.random.default_rng(9)
    table = pa.table({"key": random.integers(0, 100, 300_000), "value": random.integers(0, 1000, 300_000),
                      "name": pa.array(random.choice(["one", "two"], 300_000))})
    sums = table.group_by(["key", "name"]).aggregate([("value", "sum"), ("value", "max")])
    print(sums.sort_by([("key", "ascending"), ("name", "ascending")]).slice(0, 5).to_pylist())
    pq.write_table(table, "table.parquet", compression="zstd")
    print(pq.read_table("table.parquet").equals(table))
    ds.write_dataset(table, "set", format="parquet", partitioning=["name"], partitioning_flavor="hive",
        use_threads=False)
    print(ds.dataset("set", partitioning="hive").to_table(filter=pc.field("value") > 900, columns=["key"]).num_rows)
    pyarrow.csv.write_csv(table.slice(0, 50_000), "table.csv")
    print(pyarrow.csv.read_csv("table.csv").num_rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    print(sum(batch.num_rows for batch in pa.ipc.open_stream(sink.getvalue())),
        pa.default_memory_pool().bytes_allocated() > 0)
    print(table.to_pandas()["value"].sum() if __import__("importlib.util").util.find_spec("pandas") else 0)
"""

SPHINX_FILES = {
    "conf.py": """
        import os, sys
        sys.path.insert(0, os.getcwd())
        project, author, release = "Sample", "Nobody", "1.0"
        extensions = ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
        html_last_updated_fmt = None
    """,
    "index.rst": """
        Sample
        ======
        .. toctree::

           text
           code
    """,
    "text.rst": "Text\n====\n\n"
    + "\n".join(
        f"Part {n}\n------\n\n:ref:`search`, *more* ``text``. [{n}]_\n\n.. [{n}] note\n" for n in range(40)
    ),
    "code.rst": "Code\n====\n\n.. automodule:: sample\n   :members:\n\n.. code-block:: python\n\n   print('x')\n",
    "sample.py": '''
        """A module."""
        class Thing:
            """A thing.

            Args:
                size: how large
            """
            def __init__(self, size): self.size = size
            def grow(self, by: int = 1) -> int:
                """Grow.

                Returns:
                    the size
                """
                self.size += by
                return self.size
    ''',
}  # fmt: skip

LONG = {
    "black": Program(["-m", "black", "--check", "--diff", "--workers=1", "pluggy"], copies=["pluggy"],
        packages=["black"], exit_code=1),
    "mypy": Program(
        ["-m", "mypy", "--strict", "--cache-dir=/dev/null", "packaging"], copies=["packaging"],
        packages=["mypy", "packaging"], leaves_abruptly=True,
    ),
    "sphinx": Program(
        ["-m", "sphinx", "-b", "html", "-d", "doctrees", ".", "html"], SPHINX_FILES, packages=["sphinx"],
        produces="html/**/*"
    ),
    "flask": script(FLASK, "flask"),
    "scikit-learn": script(SKLEARN, "sklearn"),
    "gevent": script(GEVENT, "gevent"),
    "cython": Program(
        ["program.py"], {"program.py": CYTHON, "fast.pyx": CYTHON_MODULE}, packages=["Cython", "setuptools"],
        produces="fast*.so"
    ),
    "polars": script(POLARS, "polars"),
    "pyarrow": script(ARROW, "pyarrow"),
}  # fmt: skip


@pytest.mark.programs
@pytest.mark.parametrize("name", LONG)
def test_of_the_wide_world(name: str, tmp_path: Path) -> None:
    same_alone_and_recorded(LONG[name], tmp_path)
