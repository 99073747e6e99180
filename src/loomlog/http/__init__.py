"""The HTTP face of a server, for people and monitoring. Knows nothing of logs: routes come from
the caller. Only the metadata repository uses it; nothing here may be needed to append or read.
"""

from loomlog.http.server import HttpServer, Route

__all__ = ["HttpServer", "Route"]
