"""What holds for every answer: the request's id, CORS, the access log. Runs on the server's threads."""

import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime

import falcon

REQUEST_ID = "X-Request-ID"
CORS_FIELDS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Expose-Headers", f"ETag, Link, Retry-After, X-Total-Count, {REQUEST_ID}"),
)
_PREFLIGHT_FIELDS = (
    ("Access-Control-Allow-Methods", "GET, HEAD, POST"),
    ("Access-Control-Allow-Headers", f"Content-Type, If-None-Match, {REQUEST_ID}"),
    ("Access-Control-Max-Age", "86400"),
)
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestId:
    """Add its id to each response."""

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        """Name the id that the log names too."""
        resp.set_header(REQUEST_ID, request_id(req))


class Cors:
    """Open the API to websites of every origin, for GET and POST (Fetch, "CORS protocol")."""

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, resource: object, _params: dict[str, object]
    ) -> None:
        """Answer OPTIONS on a path that exists, a preflight or not, with 204."""
        if req.method == "OPTIONS":
            resp.status = falcon.HTTP_204
            resp.set_header("Allow", ", ".join(allowed_methods(resource)))
            resp.set_headers(_PREFLIGHT_FIELDS)
            resp.complete = True

    def process_response(
        self, _req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool
    ) -> None:
        """Allow every origin to read every response."""
        resp.set_headers(CORS_FIELDS)


class AccessLog:
    """Write one line of JSON for each request to a logger.

    The line holds time, request_id, client, method, path, query, status, bytes and milliseconds, never a body.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Start the clock."""
        req.context.began = time.perf_counter()

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        """Write the line."""
        now = time.perf_counter()  # Falcon refuses some requests before they are begun
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "request_id": request_id(req),
            "client": req.remote_addr,
            "method": req.method,
            "path": req.path,
            "query": req.query_string,
            "status": resp.status_code,
            "bytes": len(resp.data or b""),
            "milliseconds": round((now - getattr(req.context, "began", now)) * 1000, 3),
        }
        self._logger.info("%s", json.dumps(line))


def request_id(req: falcon.Request) -> str:
    """Return the id of a request: the caller's own when it sent a plain one, else a fresh one."""
    if not hasattr(req.context, "id"):
        sent = req.get_header(REQUEST_ID)
        req.context.id = sent if sent and _VALID_ID.fullmatch(sent) else new_request_id()
    return str(req.context.id)


def new_request_id() -> str:
    """Return a fresh request id."""
    return str(uuid.uuid4())


def allowed_methods(resource: object) -> tuple[str, ...]:
    """Return the methods that a resource answers."""
    methods = [method for method in ("GET", "HEAD", "POST") if hasattr(resource, f"on_{method.lower()}")]
    return (*methods, "OPTIONS")
