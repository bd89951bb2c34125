"""ASGI: each HTTP request is a scope, from the call of the application to its return, with all that it streams."""

from __future__ import annotations

from hiwater.contrib.web.metrics import CONTENT_TYPE, openmetrics
from hiwater.contrib.web.requests import Requests, path_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    ScopeOfASGI = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    Application = Callable[[ScopeOfASGI, Receive, Send], Awaitable[None]]


class Middleware:
    """Measures the memory of each HTTP request to an ASGI application.

    Lifespan events and websockets go to the application untouched, as do all messages. `metrics_path` is a path that
    the middleware itself answers, with the sums of all routes as OpenMetrics text. `most_routes` bounds the number of
    names; requests to further ones have one in common. `meter` is "heap", or "resident" where allocations need not be
    counted.
    """

    def __init__(
        self, app: Application, *, metrics_path: str | None = None, most_routes: int = 200, meter: str = "heap"
    ) -> None:
        self.app = app
        self._metrics_path = metrics_path
        self.requests = Requests(meter, most_routes)

    async def __call__(self, scope: ScopeOfASGI, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._metrics_path is not None and scope["path"] == self._metrics_path:
            await _answer(send)
            return
        request, failed = self.requests.begin(), True
        try:
            await self.app(scope, receive, send)
            failed = False
        finally:
            self.requests.end(request, _name(scope), failed=failed)


def _name(scope: ScopeOfASGI) -> str:
    """The method and the route: frameworks put it into the scope when they have found it."""
    path = getattr(scope.get("route"), "path", None)
    return f"{scope['method']} {path if isinstance(path, str) else path_name(scope['path'])}"


async def _answer(send: Send) -> None:
    headers = [(b"content-type", CONTENT_TYPE.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": openmetrics().encode()})
