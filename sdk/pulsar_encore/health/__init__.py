"""Health of workers over HTTP: `serve` for a port of its own, `app` for an ASGI server."""

from .asgi_app import app
from .http_server import HealthServer, serve

__all__ = ["HealthServer", "app", "serve"]
