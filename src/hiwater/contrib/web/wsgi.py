"""WSGI: each request is a scope, from the call of the application to the end of its answer."""

from __future__ import annotations

from hiwater.contrib.web.metrics import CONTENT_TYPE, openmetrics
from hiwater.contrib.web.requests import Requests, path_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Environment = dict[str, Any]
    StartResponse = Callable[..., Any]
    Application = Callable[[Environment, StartResponse], Iterable[bytes]]


class Middleware:
    """Measures the memory of each request to a WSGI application.

    Answers go to the server as the application gave them; one that is made while it is sent is measured to its end.
    `metrics_path` is a path that the middleware itself answers, with the sums of all routes as OpenMetrics text.
    `most_routes` bounds the number of names; requests to further ones have one in common. `meter` is "thread" (what the
    thread of the request allocates), "heap" (all threads), or "resident" where allocations need not be counted.
    """

    def __init__(
        self, app: Application, *, metrics_path: str | None = None, most_routes: int = 200, meter: str = "thread"
    ) -> None:
        self.app = app
        self._metrics_path = metrics_path
        self.requests = Requests(meter, most_routes)

    def __call__(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer, or let the application answer."""
        if self._metrics_path is not None and environ.get("PATH_INFO") == self._metrics_path:
            start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
            return [openmetrics().encode()]
        request = self.requests.begin()
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")  # an application may change them
        route: str | None = None

        def start(*given: Any) -> Any:
            nonlocal route
            route = _route_of(environ)  # Flask takes the route away before it returns
            return start_response(*given)

        def end(*, failed: bool) -> None:
            method = environ.get("REQUEST_METHOD", "GET")
            self.requests.end(request, f"{method} {route or path_name(path)}", failed=failed)

        try:
            answer = self.app(environ, start)
        except BaseException:
            end(failed=True)
            raise
        if _is_whole(answer, environ):
            end(failed=False)
            return answer
        return _Answer(answer, end)


def _is_whole(answer: Iterable[bytes], environ: Environment) -> bool:
    """Whether nothing is left to make. Servers treat lists and their own files in ways of their own, so these stay
    what they are."""
    file_wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(answer, (list, tuple)) or (isinstance(file_wrapper, type) and isinstance(answer, file_wrapper))


class _Answer:
    """An answer that is made while it is sent. The server closes it, whatever ends it."""

    def __init__(self, answer: Iterable[bytes], end: Callable[..., None]) -> None:
        self._answer = answer
        self._end: Callable[..., None] | None = end
        self._parts = iter(answer)
        self._failed = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        try:
            close = getattr(self._answer, "close", None)
            if close is not None:
                close()
        finally:
            end, self._end = self._end, None
            if end is not None:
                end(failed=self._failed)


def _route_of(environ: Environment) -> str | None:
    """The route, where the framework leaves it in the environment: Flask and Bottle do."""
    rule = getattr(getattr(environ.get("werkzeug.request"), "url_rule", None), "rule", None)
    rule = rule or getattr(environ.get("bottle.route"), "rule", None)
    return rule if isinstance(rule, str) else None
