"""A real mosquitto on a free port, and MQTT 5 clients that show everything."""

import getpass
import os
import queue
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers

from tests.support.waiting import eventually

_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin"
PROGRAM = os.environ.get("MOSQUITTO") or shutil.which("mosquitto", path=_FOLDERS)
"""The environment variable names another version than the installed one."""
SECONDS = 30.0

CONNECT = bytes.fromhex("100D 0004 4D515454 05 02 0000 00 0000")

CONFIGURATION = """\
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
persistence true
persistence_location {folder}/
autosave_interval 0
user {user}
log_type error
log_type unsubscribe
"""


class Mosquitto:
    """Start on entering; `kill` and `start` again keep the port."""

    def __init__(self, folder: Path, more: str = "", configuration: str = CONFIGURATION) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port: int = sock.getsockname()[1]
        self.folder = folder / "mosquitto"
        self.folder.mkdir()
        self._file = self.folder / "mosquitto.conf"
        self._file.write_text(configuration.format(port=self.port, folder=self.folder, user=getpass.getuser()) + more)
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start and wait until clients can connect."""
        assert PROGRAM is not None
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen([PROGRAM, "-c", str(self._file)], stdout=log, stderr=log)
        eventually(self._accepts, "mosquitto accepts no connection")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def save(self) -> None:
        """Make it write its database to disk, and wait until it has."""
        assert self._process is not None
        database = self.folder / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        eventually(lambda: database.exists() and database.stat().st_mtime_ns > before, "nothing was written")

    def client(self, client_id: str = "", **options: Any) -> "Client":
        """Return a connected client."""
        client = Client(self.port, client_id, **options)
        self._clients.append(client)
        return client

    def publish_bytes(self, topic: str, properties: bytes, payload: bytes) -> None:
        """Publish with properties as they are on the wire, of which paho would write millions for minutes."""
        length: Callable[[int], bytes] = VariableByteIntegers.encode
        head = len(topic).to_bytes(2, "big") + topic.encode() + b"\x00\x01" + length(len(properties))
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as sock:
            sock.sendall(CONNECT)
            sock.recv(1024)
            sock.sendall(b"\x32" + length(len(head) + len(properties) + len(payload)) + head + properties + payload)
            assert sock.recv(1024)[0] == 0x40  # PUBACK

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class Client:
    """A publisher and subscriber whose network thread runs until `close`."""

    def __init__(
        self, port: int, client_id: str = "", *, will: tuple[str, bytes] | None = None,
        login: tuple[str, str] | None = None, authority: str | None = None, level: MQTTProtocolVersion = paho.MQTTv5,
    ) -> None:  # fmt: skip
        self.messages: queue.SimpleQueue[paho.MQTTMessage] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=level)
        self._paho.max_inflight_messages = 1000
        self._paho.on_message = lambda _client, _data, message: self.messages.put(message)
        self._paho.on_subscribe = lambda *arguments: self._answers.put(arguments)
        self._paho.on_connect = lambda *arguments: self._answers.put(arguments)
        if will is not None:
            self._paho.will_set(*will, qos=1)
        if login is not None:
            self._paho.username_pw_set(*login)
        if authority is not None:
            self._paho.tls_set(authority)
        self._paho.reconnect_delay_set(1, 1)
        host = "localhost" if authority else "127.0.0.1"  # a certificate names the host
        if level == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3600  # so that nothing is missed while the broker is killed and started
            self._paho.connect(host, port, clean_start=not client_id, properties=properties)
        else:
            self._paho.connect(host, port)
        self._paho.loop_start()
        self._answers.get(timeout=SECONDS)

    def subscribe(self, *filters: str, qos: int = 1) -> Self:
        """Subscribe, and wait for the answer."""
        for topic_filter in filters:
            self._paho.subscribe(topic_filter, qos)
            self._answers.get(timeout=SECONDS)
        return self

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, wait: bool = True,
        user: tuple[tuple[str, str], ...] = (), correlation: bytes | None = None,
    ) -> paho.MQTTMessageInfo:  # fmt: skip
        """Publish, and wait for the acknowledgement."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for pair in user:
            properties.UserProperty = pair
        if correlation is not None:
            properties.CorrelationData = correlation
        eventually(self._paho.is_connected, "not connected")
        info = self._paho.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        if wait:
            info.wait_for_publish(SECONDS)
        return info

    def next(self, seconds: float = SECONDS) -> tuple[str, bytes]:
        """Return the topic and payload of the next message."""
        message = self.messages.get(timeout=seconds)
        return message.topic, bytes(message.payload)

    def collect(self, count: int, seconds: float = SECONDS) -> list[tuple[str, bytes]]:
        """Return the next messages, so many of them."""
        return [self.next(seconds) for _ in range(count)]

    def close(self) -> None:
        """Disconnect."""
        self._paho.disconnect()
        self._paho.loop_stop()
