"""The sums of routes as OpenMetrics text."""

from __future__ import annotations

import io
import os

from hiwater.contrib.web import exposition
from hiwater.contrib.web.exposition import CONTENT_TYPE, Family, Sample
from hiwater.contrib.web.requests import Requests, known

__all__ = ["CONTENT_TYPE", "openmetrics"]

_FAMILIES = (
    Family("hiwater_requests", "counter", "", "Requests that have been answered."),
    Family("hiwater_requests_failed", "counter", "", "Requests that an exception ended."),
    Family(
        "hiwater_requests_alone", "counter", "", "Requests during which no other request could change their figures."
    ),
    Family(
        "hiwater_request_seconds",
        "counter",
        "seconds",
        "Time from the first to the last moment of the requests, summed.",
    ),
    Family(
        "hiwater_request_peak_bytes",
        "gauge",
        "bytes",
        "Highest peak above the start of a request, with what other requests allocated meanwhile.",
    ),
    Family(
        "hiwater_request_alone_peak_bytes",
        "gauge",
        "bytes",
        "Highest peak above the start of a request that was alone: its own.",
    ),
    Family(
        "hiwater_request_alone_kept_bytes",
        "gauge",
        "bytes",
        "What requests that were alone allocated and did not free, summed; less than 0 if they freed more.",
    ),
)


def openmetrics() -> str:
    """The requests of all middlewares in this process, by route, as OpenMetrics text."""
    text = io.StringIO()
    samples = [sample for requests in known() for sample in _samples(requests)]
    exposition.write(_FAMILIES, samples, text)
    return text.getvalue()


def _samples(requests: Requests) -> list[Sample]:
    found = []
    for route in requests.routes():
        labels = (("route", route.name[:200]), ("meter", requests.meter), ("pid", str(os.getpid())))
        values = (
            route.requests, route.failed, route.alone, route.seconds, route.peak_bytes, route.alone_peak_bytes,
            route.alone_kept_bytes,
        )  # fmt: skip
        found += [Sample(family.name, labels, str(value)) for family, value in zip(_FAMILIES, values, strict=True)]
    return found
