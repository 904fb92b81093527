"""An HTTP server for tests of the whole bridge: records requests, answers as told. Real sockets."""

import contextlib
import http.server
import queue
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: Message
    body: bytes


Answer = tuple[int, bytes]


def echo(seen: Seen) -> Answer:
    """Answer 200 with the body that came."""
    return 200, seen.body


class Recorder:
    """A running server; `answer` may be replaced at any time."""

    def __init__(self, port: int = 0) -> None:
        self.answer: Callable[[Seen], Answer] = echo
        self.requests: queue.SimpleQueue[Seen] = queue.SimpleQueue()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.port: int = self._server.server_address[1]

    @property
    def url(self) -> str:
        """Return the base address."""
        return f"http://127.0.0.1:{self.port}"

    def request(self, seconds: float = 10.0) -> Seen:
        """Wait for the next request."""
        return self.requests.get(timeout=seconds)

    def close(self) -> None:
        """Close the port and every connection."""
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 128

    def __init__(self, *arguments: object) -> None:
        self.connections: set[object] = set()
        super().__init__(*arguments)  # type: ignore[arg-type]

    def process_request(self, request: object, client_address: object) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log no callers that were killed."""

    def close_connections(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(2)  # type: ignore[attr-defined]


def _handler(recorder: Recorder) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen = Seen(self.command, self.path, self.headers, body)
            recorder.requests.put(seen)
            status, payload = recorder.answer(seen)
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815  # http.server's names

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # http.server's name
            """Log nothing."""

    return Handler


@contextlib.contextmanager
def recording(port: int = 0) -> Iterator[Recorder]:
    """Run a recorder until the block ends."""
    recorder = Recorder(port)
    try:
        yield recorder
    finally:
        recorder.close()
