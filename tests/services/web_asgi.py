"""An ASGI application, for uvicorn."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import service_work


async def application(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"].removeprefix("lifespan.")
            await send({"type": f"lifespan.{event}.complete"})
            if event == "shutdown":
                return
    total, _ = service_work.answer(int(scope["query_string"]))
    body = json.dumps(total).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]}
    )
    await send({"type": "http.response.body", "body": body})
