"""A WSGI application, for gunicorn."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import service_work

TABLE = [bytes(1000) for _ in range(20_000)]  # what a preloaded application has before its workers are forked


def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
    total, _ = service_work.answer(int(environ["QUERY_STRING"]))
    body = json.dumps(total).encode()
    start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
