"""The middlewares: figures of single requests, and real servers on loopback whose answers must all be right."""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
import textwrap
import time
import wsgiref.handlers
import wsgiref.simple_server
import wsgiref.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import hiwater.asgi
import hiwater.wsgi
from hiwater.contrib.web.requests import OTHER, path_name
from recording import child_environment, needs_engine
from waiting import PATIENCE_SECONDS, wait_until

text_string_to_metric_families = pytest.importorskip(
    "prometheus_client.openmetrics.parser"
).text_string_to_metric_families
pytestmark = needs_engine
MOST_MICROSECONDS = 300  # some 45 on a quiet machine, twice that on a busy one: this finds costs of another order
KEPT: list[bytearray] = []


# Single requests


async def asgi(middleware: Any, path: str = "/", **scope: Any) -> list[dict[str, Any]]:
    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await middleware({"type": "http", "method": "GET", "path": path, **scope}, None, send)
    return sent


def wsgi(middleware: Any, path: str = "/", **environ: Any) -> Any:
    return middleware({"REQUEST_METHOD": "GET", "PATH_INFO": path, **environ}, lambda *_: None)


async def allocates(scope: dict[str, Any], _: object, send: Any) -> None:
    temporary = bytearray(8_000_000)
    del temporary
    KEPT.append(bytearray(1_000_000))
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def test_a_request_that_is_alone_has_its_own_peak_and_what_it_kept() -> None:
    middleware = hiwater.asgi.Middleware(allocates)
    for number in range(3):
        assert asyncio.run(asgi(middleware, f"/items/{number}"))[0]["body"] == f"/items/{number}".encode()
    (route,) = middleware.requests.routes()
    assert (route.name, route.requests, route.alone, route.failed) == ("GET /items/{}", 3, 3, 0)
    assert 8_000_000 <= route.alone_peak_bytes == route.peak_bytes < 8_100_000
    assert 3_000_000 <= route.alone_kept_bytes < 3_100_000


def test_requests_that_overlap_are_not_called_alone() -> None:
    async def waits(scope: dict[str, Any], *_: object) -> None:
        await asyncio.sleep(0.02)

    async def together() -> None:
        await asyncio.gather(asgi(middleware, "/a"), asgi(middleware, "/b"))
        await asgi(middleware, "/a")

    middleware = hiwater.asgi.Middleware(waits)
    asyncio.run(together())
    assert {route.name: (route.requests, route.alone) for route in middleware.requests.routes()} == {
        "GET /a": (2, 1), "GET /b": (1, 0),
    }  # fmt: skip


def test_a_thread_has_the_figures_of_its_own_request() -> None:
    def app(environ: dict[str, Any], _: object) -> list[bytes]:
        size = int(environ["QUERY_STRING"])
        temporary = bytearray(size)
        time.sleep(0.02)
        return [bytes(len(temporary) % 7)]

    middleware = hiwater.wsgi.Middleware(app)
    with ThreadPoolExecutor(4) as pool:
        for letter, size in zip("abcd", (1, 2, 4, 8), strict=True):
            pool.submit(wsgi, middleware, f"/of-{letter}", QUERY_STRING=str(size * 1_000_000))
    routes = sorted(middleware.requests.routes(), key=lambda route: route.peak_bytes)
    assert [route.alone for route in routes] == [1, 1, 1, 1]
    assert [round(route.alone_peak_bytes / 1_000_000) for route in routes] == [1, 2, 4, 8]


def test_exceptions_are_passed_through_and_counted() -> None:
    async def fails(*_: object) -> None:
        raise ValueError("from the application")

    def fails_too(*_: object) -> None:
        raise KeyError("from the application")

    of_asgi, of_wsgi = hiwater.asgi.Middleware(fails), hiwater.wsgi.Middleware(fails_too)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from the application"):
        asyncio.run(asgi(of_asgi))
    with pytest.raises(KeyError):
        wsgi(of_wsgi)
    assert [one.requests.routes()[0].failed for one in (of_asgi, of_wsgi)] == [1, 1]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_goes_to_the_application_untouched(kind: str) -> None:
    seen: list[object] = []

    async def app(*given: object) -> None:
        seen.extend(given)

    scope, receive, send = {"type": kind}, object(), object()
    middleware = hiwater.asgi.Middleware(app)
    asyncio.run(middleware(scope, receive, send))  # type: ignore[arg-type]
    assert seen[0] is scope and seen[1] is receive and seen[2] is send and middleware.requests.routes() == []


def test_an_answer_that_is_a_list_or_the_servers_file_stays_what_it_is() -> None:
    answer: Any
    for answer in ([b"a"], (b"a",), wsgiref.util.FileWrapper(BytesIO(b"a"))):
        middleware = hiwater.wsgi.Middleware(lambda *_, answer=answer: answer)
        assert wsgi(middleware, **{"wsgi.file_wrapper": wsgiref.util.FileWrapper}) is answer
        assert middleware.requests.routes()[0].requests == 1


@pytest.mark.parametrize("ending", ["whole", "left", "failed"])
def test_an_answer_that_is_made_while_it_is_sent_is_measured_to_its_end(ending: str) -> None:
    closed = []

    def app(*_: object) -> Iterator[bytes]:
        try:
            yield b"first"
            if ending == "failed":
                raise OSError
            yield bytes(5_000_000)
        finally:
            closed.append(True)

    middleware = hiwater.wsgi.Middleware(app)
    answer = wsgi(middleware)
    assert next(answer) == b"first" and middleware.requests.routes() == []
    if ending == "whole":
        assert [len(part) for part in answer] == [5_000_000]
    elif ending == "failed":
        with pytest.raises(OSError):
            next(answer)
    answer.close()
    answer.close()
    (route,) = middleware.requests.routes()
    assert closed == [True] and (route.requests, route.failed) == (1, int(ending == "failed"))
    assert (route.peak_bytes > 4_900_000) == (ending == "whole")


def test_the_number_of_names_is_bounded() -> None:
    middleware = hiwater.wsgi.Middleware(lambda *_: [b""], most_routes=3)
    for letter in "abcdef":
        wsgi(middleware, f"/{letter}")
    assert [(route.name, route.requests) for route in middleware.requests.routes()] == [
        ("GET /a", 1), ("GET /b", 1), ("GET /c", 1), (OTHER, 3),
    ]  # fmt: skip


def test_paths_without_a_route_are_named_without_what_changes() -> None:
    paths = {"/": "/", "": "/", "/users/17/posts": "/users/{}/posts", "/a/" + "x" * 40: "/a/{}", "/v2/x": "/{}/x"}
    assert {path: path_name(path) for path in paths} == paths


def test_a_request_costs_no_more_than_a_scope() -> None:
    app = [b""]
    middleware, count = hiwater.wsgi.Middleware(lambda *_: app), 1000
    costs = []
    for _ in range(8):
        began = time.thread_time()
        for _ in range(count):
            wsgi(middleware, "/items")
        costs.append((time.thread_time() - began) / count * 1e6)
    assert min(costs) < MOST_MICROSECONDS, costs


# Servers

STARLETTE = """
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route, WebSocketRoute
    import contextlib, asyncio, hiwater.asgi
    started = []
    kept = []
    async def item(request):
        kept.append(bytearray(10_000))
        await asyncio.sleep(0.001)
        return PlainTextResponse(f"item {request.path_params['number']} {len(started)}")
    async def stream(request):
        async def parts():
            for number in range(5):
                yield f"{number};" * 1000
        return StreamingResponse(parts())
    def fail(request):
        raise ValueError("on purpose")
    async def echo(socket):
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()
    @contextlib.asynccontextmanager
    async def lifespan(app):
        started.append(1)
        yield
    routes = [Route("/items/{number}", item), Route("/stream", stream), Route("/fail", fail)]
    routes += [WebSocketRoute("/echo", echo)]
    app = hiwater.asgi.Middleware(Starlette(routes=routes, lifespan=lifespan), metrics_path="/metrics/memory")
"""
FLASK = """
    import flask, hiwater.wsgi
    site = flask.Flask(__name__)
    @site.route("/items/<int:number>")
    def item(number):
        return f"item {number} 1"
    @site.route("/stream")
    def stream():
        return flask.Response(f"{number};" * 1000 for number in range(5))
    @site.route("/fail")
    def fail():
        raise ValueError("on purpose")
    app = hiwater.wsgi.Middleware(site.wsgi_app, metrics_path="/metrics/memory")
"""
STREAMED = "".join(f"{number};" * 1000 for number in range(5))


@contextmanager
def served(folder: Path, source: str, *command: str) -> Iterator[int]:
    """The port of a server that runs this application."""
    (folder / "site_of_test.py").write_text(textwrap.dedent(source))
    said = folder / "said.txt"
    with said.open("w") as stderr:
        server = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, env=child_environment(), stdout=stderr, stderr=stderr
        )

    def port() -> int:
        assert server.poll() is None, said.read_text()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said.read_text())
        return int(found[1]) if found else 0

    try:
        wait_until(port)
        yield port()
        server.terminate()
        server.wait(PATIENCE_SECONDS)
    finally:
        server.kill()
        server.wait()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", path)
    answer = connection.getresponse()
    status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


WANTED = [
    *((f"/items/{number}", 200, f"item {number} 1") for number in range(120)),
    *[("/stream", 200, STREAMED), ("/fail", 500, ""), ("/missing", 404, "")] * 5,
]


def load(port: int) -> None:
    """Many clients at once; every answer must be right."""
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda one: get(port, one[0]), WANTED)
        for (path, status, text), answer in zip(WANTED, answers, strict=True):
            assert answer[0] == status and (not text or answer[1] == text), path


def requests_by_route(port: int) -> dict[str, float]:
    families = {family.name: family for family in text_string_to_metric_families(get(port, "/metrics/memory")[1])}
    samples = families["hiwater_requests"].samples
    assert set(families) >= {"hiwater_request_peak_bytes", "hiwater_request_alone_kept_bytes"}
    return {sample.labels["route"]: sample.value for sample in samples}


def all_requests_by_route(port: int) -> dict[str, float]:
    """Of one process that has answered them all. A client has its answer before the request is counted."""
    wait_until(lambda: sum(requests_by_route(port).values()) >= len(WANTED))
    return requests_by_route(port)


def test_uvicorn_answers_everything_and_names_routes(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    with served(tmp_path, STARLETTE, "uvicorn", "site_of_test:app", "--port", "0") as port:
        load(port)
        found = all_requests_by_route(port)
        assert found["GET /items/{number}"] == 120 and found["GET /stream"] == 5 and found["GET /fail"] == 5
        websockets = pytest.importorskip("websockets.sync.client")
        with websockets.connect(f"ws://127.0.0.1:{port}/echo") as socket:
            socket.send("as sent")
            assert socket.recv() == "as sent"


@pytest.mark.parametrize(
    "options", [("--workers", "1"), ("--workers", "1", "--threads", "4"), ("--workers", "2", "--preload")]
)
def test_gunicorn_answers_everything_and_names_routes(tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("gunicorn")
    pytest.importorskip("flask")
    with served(
        tmp_path, FLASK, "gunicorn", "-b", "127.0.0.1:0", "--no-control-socket", *options, "site_of_test:app"
    ) as port:
        load(port)
        if options[1] != "1":  # one of the workers answers, for itself
            requests_by_route(port)
            return
        found = all_requests_by_route(port)
        assert found["GET /items/<int:number>"] == 120 and found["GET /stream"] == 5 and found["GET /missing"] == 5


def test_wsgiref_serves_what_the_application_gave() -> None:
    middleware = hiwater.wsgi.Middleware(wsgiref.simple_server.demo_app, metrics_path="/metrics/memory")
    with wsgiref.simple_server.make_server("127.0.0.1", 0, middleware) as server, ThreadPoolExecutor(1) as pool:
        for path, text in (("/x", "Hello world!"), ("/metrics/memory", "# EOF")):
            serving = pool.submit(server.handle_request)
            assert text in get(server.server_port, path)[1]
            serving.result()
