"""The HTTP server of a metadata repository, for people and monitoring.

Routes come from the caller. Appends and reads never depend on it.
"""

from loomlog.http.server import HttpServer, Route

__all__ = ["HttpServer", "Route"]
