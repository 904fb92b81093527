"""Connections to PostgreSQL whose waits end: a server that accepts and never answers must not keep our threads.

A server that is stopped or whose disk hangs still has its data acknowledged by its kernel, so neither its
`statement_timeout` nor TCP's timeouts end our wait. Only here is psycopg imported. Runs on the calling thread.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg

ANSWER_SECONDS = 9.0
"""The longest wait for one statement; above the server's own `statement_timeout`, whose message has more detail."""
PING_SECONDS = 3.0
"""The longest wait for a ping. The pool pings before each use, and only then in autocommit."""

ARGUMENTS = {"connect_timeout": 3, "tcp_user_timeout": 5000, "options": "-c statement_timeout=8000"}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server leaves it without an answer for too long."""

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **named: Any) -> Any:
        """Wait for one exchange with the server; close the connection and raise when there is no answer in time."""
        seconds = PING_SECONDS if self.autocommit else ANSWER_SECONDS
        return super().wait(self._bounded(gen, seconds), *arguments, **named)

    def _bounded(self, exchange: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
        """Pass an exchange's waits on; psycopg sends 0 every 0.1 s in which nothing came."""
        deadline = time.monotonic() + seconds
        try:
            awaited = next(exchange)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > deadline:
                    exchange.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {seconds:g} s")
                awaited = exchange.send(ready)
        except StopIteration as end:
            return end.value


def connect(_dialect: object, _record: object, words: Any, named: Any) -> BoundedConnection:
    """Open a connection; made to listen to an engine's `do_connect`."""
    return BoundedConnection.connect(*words, **named)
