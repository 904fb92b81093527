"""A lossless route, and what its server and its spool have of its messages."""

import collections
import contextlib
import sqlite3
import threading
from pathlib import Path

from tests.support.embedded_broker import Host
from tests.support.http_recorder import Recorder
from tests.support.http_target import Seen


def route(port: int, capacity: int = 10_000) -> str:
    return f"""DEFINE ROUTE L WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
        ADD EVENT E
            WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_CAPACITY '{capacity}'
    """


class Keys:
    """What a server got: bodies and the Idempotency-Keys they came with."""

    def __init__(self, recorder: Recorder) -> None:
        self.of: dict[bytes, set[str]] = collections.defaultdict(set)
        self.lock = threading.Lock()
        recorder.answer = self.answer

    def answer(self, seen: Seen) -> tuple[int, bytes]:
        with self.lock:
            self.of[seen.body].add(seen.headers["Idempotency-Key"])
        return 200, seen.body


def load(host: Host, routes: str) -> None:
    """Use other routes now."""
    Path(host.plugin.config.routes).write_text(routes)
    host.reload()


def on_disk(spool: Path) -> int:
    """Count the calls in a spool, with a connection of our own."""
    with contextlib.closing(sqlite3.connect(spool)) as connection:
        return int(connection.execute("SELECT count(*) FROM calls").fetchone()[0])
