"""Coreflux's tools as they speak, and a broker that serves them.

Topics, payloads and QoS are those of the notebook extension 0.4.1 (VSCodeLotNotebook) and of the editor plugin 0.1
(coreflux-cursor-plugin); both speak MQTT 3.1.1.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from tests.benchmarks.mqtt_wire import Wire, publish_packet, subscribe_packet
from tests.support.embedded_broker import Host, configuration

COMMAND = "$SYS/Coreflux/Command"
OUTPUT = "$SYS/Coreflux/Command/Output"
USERS = {"editor": "right", "guest": "guest"}
"""Passwords; only the editor is named in the setting."""
FILE_ROUTE = """DEFINE ROUTE FromFile WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT "true"
        WITH BASE_ADDRESS "http://127.0.0.1:1"
    ADD EVENT E
        WITH SOURCE_TOPIC "file/in"
        WITH METHOD "POST"
        WITH ENDPOINT "/"
        WITH BODY "{payload}"
        WITH DESTINATION_TOPIC "file/out"
"""


def definition(name: str, topic: str = "in") -> str:
    """Return the text of a cell."""
    return FILE_ROUTE.replace("FromFile", name).replace("file/", f"{topic}/").rstrip("\n")


class Passwords(BaseAuthPlugin):
    """Knows the users."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return None if session.username is None else USERS.get(session.username) == session.password


class AllowAll(BaseTopicPlugin):
    """An ACL that allows everything."""

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        return True


OPEN: dict[str, Any] = {f"{__name__}.{plugin}": {} for plugin in ("Passwords", "AllowAll")}


@contextlib.contextmanager
def serving(
    folder: Path, plugins: dict[str, Any] = OPEN, routes: str = "routes.lot", **settings: Any
) -> Iterator[Host]:
    """Run a broker with a route file, and an empty folder `live` for commands."""
    (folder / "routes.lot").write_text(FILE_ROUTE)
    live = {"users": ["editor"], "routes": str(folder / "live")}
    host = Host(configuration(folder / routes, plugins, **{"coreflux": live, **settings}))
    try:
        yield host
    finally:
        host.stop()


class Tool:
    """A client that is logged in and listens to the answers, if it may."""

    _numbers = itertools.count(1)

    def __init__(self, host: Host, user: str = "editor", *filters: str, password: str | None = None) -> None:
        password = USERS.get(user, "none") if password is None else password
        self.wire = Wire(host.mqtt_port, f"tool-{next(self._numbers)}", login=(user, password))
        self.seen: list[tuple[str, bytes]] = []
        """What came on other topics than that of the answers."""
        self.outputs: list[bytes] = []
        self._granted: list[int] = []
        for topic_filter in filters or (OUTPUT,):
            self.subscribe(topic_filter)

    def subscribe(self, topic_filter: str) -> int:
        """Subscribe with QoS 1, and return what is granted: 0x80 for a refusal."""
        self.wire.send(subscribe_packet(topic_filter, 1))
        while not self._granted:
            self._read()
        return self._granted.pop()

    def close(self) -> None:
        """Disconnect."""
        self.wire.close()

    def publish(self, payload: bytes | str) -> None:
        """Publish a command as both tools do."""
        data = payload if isinstance(payload, bytes) else payload.encode()
        self.wire.send(publish_packet(COMMAND, data, next(self._numbers) % 60_000 + 1))

    def command(self, payload: bytes | str) -> str:
        """Publish a command and return the next answer."""
        self.publish(payload)
        return self.answer()

    def add(self, name: str, text: str | None = None) -> None:
        """Add a route, by default that of a cell."""
        assert self.command(f"-addRoute {text or definition(name)}") == f"Route '{name}' added successfully."

    def remove(self, name: str) -> None:
        """Remove a route that was added."""
        assert self.command(f"-removeRoute {name}") == f"Route '{name}' removed successfully."

    def routes(self) -> list[str]:
        """Return the names of all routes."""
        return [row["name"] for row in self.call("-listRoutes")["data"]]

    def answer(self) -> str:
        """Return the next answer."""
        while not self.outputs:
            self._read()
        return self.outputs.pop(0).decode()

    def call(self, command: str, request_id: str = "cursor-1a2b3c4d") -> dict[str, Any]:
        """Publish a command as the editor plugin does, and return the envelope with its request id."""
        envelope: dict[str, Any] = json.loads(self.command(f"{command.strip()} -requestId {request_id}"))
        assert envelope["requestId"] == request_id
        return envelope

    def read(self, topic: str) -> bytes:
        """Wait until something is known of a topic, and return the last of it."""
        while topic not in dict(self.seen):
            self._read()
        return dict(self.seen)[topic]

    def _read(self) -> None:
        for kind, body in self.wire.receive():
            if kind == 0x90:
                self._granted.append(body[-1])
            elif kind & 0xF0 == 0x30:
                topic, payload = self.wire.take(kind, body)
                if topic == OUTPUT:
                    self.outputs.append(payload)
                else:
                    self.seen.append((topic, payload))


def cell_ends(answer: str, step: str, name: str) -> str | None:
    """Return what the notebook extension makes of an answer: `added`, `add`, `failed`, None when it goes on waiting."""
    lower = answer.lower()
    is_success, is_error = "success" in lower, "error" in lower or "failed" in lower
    is_not_found = "not found" in lower or "does not exist" in lower
    pattern = r"Parsing error:\s*([\s\S]+?)(?:\s+with Errors:\s*([\s\S]+))?$"
    is_parsing_error = re.search(pattern, answer, re.MULTILINE | re.IGNORECASE)
    is_named = name in answer and (is_success or is_not_found or is_error)
    if not (is_named or (step == "add" and is_parsing_error)):
        return None
    if step == "remove":
        return "add" if is_success or is_not_found else "failed"
    return "added" if is_success else "failed"
