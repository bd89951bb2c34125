"""Memory of the requests to ASGI applications: `app = hiwater.asgi.Middleware(app)`."""

from hiwater.contrib.web.asgi import Middleware
from hiwater.contrib.web.metrics import openmetrics

__all__ = ["Middleware", "openmetrics"]
