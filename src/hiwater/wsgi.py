"""Memory of the requests to WSGI applications: `app = hiwater.wsgi.Middleware(app)`."""

from hiwater.contrib.web.metrics import openmetrics
from hiwater.contrib.web.wsgi import Middleware

__all__ = ["Middleware", "openmetrics"]
