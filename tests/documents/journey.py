"""Which modules of ours a message and a request enter, there and back, recorded under the interpreter's profile hook.

    python -m tests.documents.journey

prints them, for the plugin and for a worker, in the order in which they are entered first.
"""

import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

import amqtt_rest_bridge
from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Spool
from tests.support import beside_broker, embedded_broker
from tests.support.doors import Hosting
from tests.support.http_recorder import Recorder, recording
from tests.worker.mosquitto import PROGRAM

PACKAGE: Final = Path(amqtt_rest_bridge.__file__).parent
_EXCHANGES: Final = 6
_QUIET_SECONDS: Final = 0.1  # for what follows an exchange, such as its acknowledgement

SENDING: Final = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    {more}
    ADD EVENT Send
        WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/a" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""
SERVING: Final = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT Take
        WITH METHOD "POST" WITH ENDPOINT "/take/{name}" WITH DESTINATION_TOPIC "out/{path.name}"
"""
_LOSSLESS: Final = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'


class Journal:
    """Every entry into a module of ours, while it is switched on; on all threads that start after it."""

    def __init__(self) -> None:
        self._entries: list[str] = []
        self._is_on = False

    def __enter__(self) -> "Journal":
        """Begin to look."""
        threading.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        threading.setprofile(sys.getprofile())

    def record(self, action: Callable[[], object]) -> list[str]:
        """Return the modules that are entered during an action and a moment after it, one for each call."""
        self._entries, self._is_on = [], True
        action()
        time.sleep(_QUIET_SECONDS)
        self._is_on = False
        return self._entries

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call" and (file := frame.f_code.co_filename).startswith(f"{PACKAGE}/"):
            self._entries.append(file.removeprefix(f"{PACKAGE}/"))


def modules(journeys: Sequence[Sequence[str]]) -> list[str]:
    """Return what all journeys enter, in the order of the last one; what runs beside one of them is left out."""
    common = set.intersection(*map(set, journeys))
    return [name for name in dict.fromkeys(journeys[-1]) if name in common]


def messages(journal: Journal, hosting: Hosting, target: Recorder) -> list[list[str]]:
    """Return the journeys of some messages of client mode."""
    with hosting(SENDING.format(url=target.url, more="")) as host:
        client = host.client("out")

        def exchange() -> None:
            client.publish("in", b"1", qos=0)
            client.message()

        return [journal.record(exchange) for _ in range(_EXCHANGES)][1:]


def requests(journal: Journal, hosting: Hosting) -> list[list[str]]:
    """Return the journeys of some requests of server mode."""
    with hosting(SERVING) as host:
        client = host.client("out/x")

        def exchange() -> None:
            urllib.request.urlopen(f"http://127.0.0.1:{host.http_port}/take/x", b"1", 10).close()
            client.message()

        return [journal.record(exchange) for _ in range(_EXCHANGES)][1:]


def lossless_messages(journal: Journal, target: Recorder, spool: Path) -> list[list[str]]:
    """Return the journeys of some messages of a lossless route."""
    with _lossless(target, spool) as host:
        client = host.client("out")

        def exchange() -> None:
            client.publish("in", b"1")
            client.message()

        return [journal.record(exchange) for _ in range(_EXCHANGES)][1:]


def lossless_message_of_before(journal: Journal, target: Recorder, spool: Path) -> list[str]:
    """Return the journey of a message that an earlier broker has left on disk, from the start of the next one."""
    before = Spool(spool)
    before.keep("R", "Send", Message("in", b"1", 1.0), 0, None)
    before.close()

    def start() -> None:
        with _lossless(target, spool):
            target.request()
            time.sleep(_QUIET_SECONDS)

    return journal.record(start)


def _lossless(target: Recorder, spool: Path) -> AbstractContextManager[embedded_broker.Host]:
    return embedded_broker.hosting(SENDING.format(url=target.url, more=_LOSSLESS), spool=str(spool))


@contextmanager
def _spool() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder, "spool.db")


def main() -> None:
    """Print all journeys."""
    with Journal() as journal, recording() as target, _spool() as spool:
        found = {"plugin, a lossless message": modules(lossless_messages(journal, target, spool))}
        hostings: dict[str, Hosting] = {"plugin": embedded_broker.hosting}
        if PROGRAM is not None:
            hostings["worker"] = beside_broker.hosting
        for name, hosting in hostings.items():
            found[f"{name}, a message"] = modules(messages(journal, hosting, target))
            found[f"{name}, a request"] = modules(requests(journal, hosting))
    for what, entered in found.items():
        print(f"{what}: {len(entered)} modules", *entered, sep="\n    ")


if __name__ == "__main__":
    main()
