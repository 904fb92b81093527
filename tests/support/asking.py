"""A request to a port of this machine, over a connection of its own, and its answer, whatever its status."""

import contextlib
import http.client
import json
from email.message import Message
from typing import Any, NamedTuple

from tests.support.waiting import SECONDS, eventually


class Answered(NamedTuple):
    """An answer, read to its end."""

    status: int
    body: bytes
    headers: Message

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(port: int, path: str, body: bytes | None = None, *, method: str | None = None, **headers: str) -> Answered:
    """Send GET, or POST where there is a body; names of headers have `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=3 * SECONDS)) as connection:
        connection.request(method or ("GET" if body is None else "POST"), path, body, named)
        response = connection.getresponse()
        return Answered(response.status, response.read(), response.headers)


def ask_until_answered(port: int, path: str, body: bytes, **headers: str) -> Answered:
    """Send a request again while what serves the port is killed and started again."""
    answers: list[Answered] = []

    def is_answered() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(ask(port, path, body, **headers))
        return bool(answers)

    eventually(is_answered, "no answer", pause_seconds=0.02)
    return answers[0]
