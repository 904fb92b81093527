"""An HTTP API to practise on: it takes meter readings at POST http://127.0.0.1:9000/readings/METER and prints each.

    python3 conf/practice_api.py [--require NAME] [--port PORT]

A reading is a JSON object with `kwh`; with `--require unit` one that lacks `unit` is refused with 422. A repeated
Idempotency-Key is answered as the first time. It needs only the standard library.
"""

import argparse
import contextlib
import errno
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Readings(BaseHTTPRequestHandler):
    """One request; the readings are kept by their Idempotency-Key."""

    required: ClassVar[list[str]] = ["kwh"]
    ids: ClassVar[dict[str, int]] = {}

    def do_POST(self) -> None:
        """Take a reading, or say what it lacks."""
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key", f"none-{len(self.ids)}")
        note = " (seen before)" if key in self.ids else ""
        try:
            lacking = [name for name in self.required if name not in json.loads(text)]
        except (ValueError, TypeError):
            lacking = ["a JSON object"]
        if lacking:
            status, answer = 422, {"error": f"{lacking[0]} is required"}
        else:
            status, answer = 201, {"id": self.ids.setdefault(key, len(self.ids) + 1)}
        print(f"{status} POST {self.path} {text.decode(errors='replace')}{note}\n", end="", flush=True)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing else."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", metavar="NAME", action="append", default=[], help="a member beside kwh to ask for")
    parser.add_argument("--port", type=int, default=9000, help="default: 9000")
    given = parser.parse_args()
    Readings.required = ["kwh", *given.require]
    try:
        server = ThreadingHTTPServer(("127.0.0.1", given.port), Readings)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        parser.exit(1, f"port {given.port} is taken: end the other practice API\n")
    print(f"listening on http://127.0.0.1:{given.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
