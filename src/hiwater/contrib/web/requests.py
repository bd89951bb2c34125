"""The requests of an application: a scope for each, and the sums of each route."""

from __future__ import annotations

import re
import threading
import weakref
from threading import get_ident

from hiwater._os.native import unrecorded
from hiwater.errors import MeterUnavailable
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = "(other)"
"""The route that has the sums of all requests beyond the bound."""
_FALL_BACK = "resident"
_CHANGES = re.compile(r"(?<=/)(?:[^/]*\d[^/]*|[^/]{33,})(?=/|$)")
_KNOWN: weakref.WeakSet[Requests] = weakref.WeakSet()


class Route:
    """The sums of one route. "Alone" are requests during which no other request was open that could be in their
    figures."""

    __slots__ = ("alone", "alone_kept_bytes", "alone_peak_bytes", "failed", "name", "peak_bytes", "requests", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = self.failed = self.alone = 0
        self.seconds = 0.0
        self.peak_bytes = 0
        """The highest peak above the start of any request, with what others did meanwhile."""
        self.alone_peak_bytes = 0
        """The same of the requests that were alone: their own."""
        self.alone_kept_bytes = 0
        """What the requests that were alone allocated and did not free, summed."""


class Request:
    """One request that is being answered."""

    __slots__ = ("begun", "key", "scope", "was_first")

    def __init__(self, scope: Scope | None, key: int) -> None:
        self.scope = scope
        self.key = key
        self.begun = 0
        self.was_first = False


class Requests:
    """The routes of one application. Requests of all threads and tasks go through it."""

    def __init__(self, meter: str, most_routes: int) -> None:
        """`meter` is "thread" (what the thread of the request allocates), "heap" or "resident"."""
        self.meter = meter
        self._most = most_routes
        self._routes: dict[str, Route] = {}
        self._lock = threading.Lock()
        # by thread, or all under 0: requests that are open, and that have begun since none was
        self._open: dict[int, list[int]] = {}
        _KNOWN.add(self)

    def routes(self) -> list[Route]:
        """The routes so far, in the order of their first requests."""
        with self._lock:
            return list(self._routes.values())

    def begin(self) -> Request:
        """Begin a request."""
        return unrecorded(Requests._begin, self, None)

    def end(self, request: Request, route: str, *, failed: bool) -> None:
        """End a request; its figures are added to the route's."""
        unrecorded(Requests._end, self, (request, route, failed))

    def _begin(self, _: None) -> Request:
        request = Request(self._scope(), get_ident() if self.meter == "thread" else 0)
        with self._lock:
            counts = self._open.setdefault(request.key, [0, 0])
            counts[0] += 1
            counts[1] += 1
            request.begun, request.was_first = counts[1], counts[0] == 1
        return request

    def _scope(self) -> Scope | None:
        """A scope that has begun. Where the meter cannot work, resident memory is measured; where that cannot,
        nothing is."""
        while self.meter:
            scope = Scope("request", (self.meter,))
            try:
                SCOPE_MANAGER.enter(scope)
            except MeterUnavailable:
                self.meter = _FALL_BACK if self.meter != _FALL_BACK else ""
            else:
                return scope
        return None

    def _end(self, ending: tuple[Request, str, bool]) -> None:
        request, name, failed = ending
        if request.scope is not None:
            SCOPE_MANAGER.exit(request.scope)
        with self._lock:
            counts = self._open[request.key]
            is_alone = request.was_first and counts[1] == request.begun
            counts[0] -= 1
            if counts[0] == 0:
                del self._open[request.key]
            route = self._routes.get(name)
            if route is None:
                name = name if len(self._routes) < self._most else OTHER
                route = self._routes.setdefault(name, Route(name))
            _add(route, request.scope, failed=failed, is_alone=is_alone)


def _add(route: Route, scope: Scope | None, *, failed: bool, is_alone: bool) -> None:
    route.requests += 1
    route.failed += failed
    if scope is None or not scope.figures or scope.began is None or scope.ended is None:
        return
    figure = scope.figures[0]
    peak, kept = figure.peak - figure.start, figure.end - figure.start
    route.seconds += (scope.ended[0] - scope.began[0]) / 1e9
    route.peak_bytes = max(route.peak_bytes, peak)
    if is_alone and figure.intact:
        route.alone += 1
        route.alone_peak_bytes = max(route.alone_peak_bytes, peak)
        route.alone_kept_bytes += kept


def path_name(path: str) -> str:
    """A name for a path where the framework has no route: parts with a digit in them, and very long ones, are
    replaced."""
    return _CHANGES.sub("{}", path) or "/"


def known() -> Iterator[Requests]:
    """All applications of this process that have a middleware."""
    return iter(list(_KNOWN))
