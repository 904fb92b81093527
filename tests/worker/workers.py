"""`rest-bridge worker` as its users run it: processes of one group beside a broker."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import crashing
from tests.support.commands import Running
from tests.support.forked import REST_BRIDGE, Forked
from tests.support.waiting import eventually
from tests.worker.mosquitto import SECONDS, Mosquitto


def client_route(
    name: str, port: int, topic: str, *, config: str = "", event: str = "", path: str = "/", timeout: int = 30
) -> str:
    """Write a route that posts each message of a topic filter and publishes the answer on `results/<name>`."""
    return f"""
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT "true"
        WITH BASE_ADDRESS "http://127.0.0.1:{port}"
        WITH RETRIES 0
        WITH REQUEST_TIMEOUT {timeout}
    {config and f"ADD ROUTE_CONFIG {config}"}
    ADD EVENT Call
        WITH SOURCE_TOPIC "{topic}"
        WITH METHOD "POST"
        WITH ENDPOINT "{path}"
        WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "results/{name}"
        WITH HEADERS
            ADD "Content-Type" "text/plain"
            ADD "X-Topic" "{{topic}}"
        {event}
"""


LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


class Worker(Running):
    """One worker's process."""

    def ready(self) -> Self:
        """Wait until it takes messages."""
        self.line("ready:")
        return self

    def has_written(self, part: str) -> bool:
        """Return whether it has written a line that holds a text."""
        return any(part in line for line in self.lines)

    def wrote(self, part: str) -> None:
        """Wait until it has written a line that holds a text, if it has not before."""
        try:
            eventually(lambda: self.has_written(part), f"it has not written {part!r}", SECONDS)
        except AssertionError as error:
            raise AssertionError("\n".join([f"{error}; its last lines:", *self.lines[-40:]])) from None

    def id(self) -> str:
        """Wait until it takes messages, and return the id by which its group knows it."""
        self.wrote("ready:")
        ready = next(line for line in self.lines if "ready:" in line)
        return ready.partition("ready: ")[2].partition(",")[0]

    def stop(self) -> int:
        """End it with SIGTERM, and return its exit status."""
        self.send(signal.SIGTERM)
        return self.end()


SOON: Mapping[str, object] = {"amqtt_rest_bridge.group.leases.GONE_SECONDS": 1.0}
"""The slots of a worker that was killed are free after a second, not three."""


class Group:
    """The workers of a group, all with one folder of routes."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        self.folder = folder
        self.broker = broker
        self.workers: list[Worker] = []
        (folder / "routes").mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.kill()

    def routes(self, text: str, name: str = "routes.lot") -> None:
        """Write a route file, in one step, so that no reload sees half of it."""
        path = self.folder / "routes" / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def start(
        self, slot: int = 0, crash: crashing.Crash | None = None, constants: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> Worker:  # fmt: skip
        """Start a worker, which may note its effects and crash behind one of them; `ready` waits for it."""
        configuration = {
            "broker": self.broker.url, "group": "plant", "slots": 2, "slot": slot, "adopt_seconds": 30,
            "routes": str(self.folder / "routes"), "reload_seconds": 0, **settings,
        }  # fmt: skip
        path = self.folder / f"worker-{slot}.yaml"
        path.write_text(json.dumps(configuration))
        module, environment = (REST_BRIDGE, None) if crash is None else crash.of(REST_BRIDGE)
        soon = {**SOON, **(constants or {})}
        worker = Worker(
            Forked(module, ["worker", "-c", str(path)], self.folder, environment=environment, constants=soon)
        )
        self.workers.append(worker)
        return worker
