"""A lossless route, and what its server and its spool have of its messages."""

import collections
import contextlib
import sqlite3
import threading
from pathlib import Path

from tests.support.embedded_broker import Host
from tests.support.http_recorder import Recorder
from tests.support.http_target import Seen


def route(
    port: int, capacity: int = 10_000, *, body: str = "{payload}", event: str = "", config: str = "", more: str = ""
) -> str:
    """Return a lossless route with event E for topics below `in`.

    Args:
        port: Of its server.
        capacity: OVERLOAD_CAPACITY.
        body: BODY of its events.
        event: Further settings of its events.
        config: Further settings of its ROUTE_CONFIG.
        more: Names of further events, a character each, for the topics of these names.
    """
    posts = f'WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{body}" WITH DESTINATION_TOPIC "out" {event}'
    events = [
        f'ADD EVENT {name} WITH SOURCE_TOPIC "{topic}" {posts}'
        for name, topic in [("E", "in/#"), *zip(more, more, strict=True)]
    ]
    return f"""DEFINE ROUTE L WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
        {" ".join(events)}
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_CAPACITY '{capacity}' {config}
    """


class Keys:
    """What a server got: the Idempotency-Keys of each body, and the bodies in order."""

    def __init__(self, recorder: Recorder) -> None:
        self.of: dict[bytes, set[str | None]] = collections.defaultdict(set)
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()
        recorder.answer = self.answer

    def answer(self, seen: Seen) -> tuple[int, bytes]:
        with self.lock:
            self.of[seen.body].add(seen.headers["Idempotency-Key"])
            self.bodies.append(seen.body)
        return 200, seen.body


def load(host: Host, routes: str) -> None:
    """Use other routes now."""
    Path(host.plugin.config.routes).write_text(routes)
    host.reload()


def on_disk(spool: Path) -> int:
    """Count the calls in a spool, with a connection of our own."""
    with contextlib.closing(sqlite3.connect(spool)) as connection:
        return int(connection.execute("SELECT count(*) FROM calls").fetchone()[0])
