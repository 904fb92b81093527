"""The setting coreflux of a worker: commands of a group, one worker of which answers.

Mosquitto lets no client publish below `$SYS`, so here the workers' topics begin with another word.
"""

import json
import signal
from typing import Any

import pytest

from amqtt_rest_bridge.system import own_version
from tests.support.http_recorder import recording
from tests.support.waiting import eventually
from tests.tools.commands.tools import FILE_ROUTE, definition
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.test_start import reason_of, run
from tests.worker.workers import Group, Worker

pytestmark = pytest.mark.mosquitto
COMMAND, OUTPUT, ROOT = "Coreflux/Command", "Coreflux/Command/Output", "Coreflux"
TOPICS = {
    "amqtt_rest_bridge.tools.commands.service.OUTPUT_TOPIC": OUTPUT,
    "amqtt_rest_bridge.tools.commands.service.ROOT": ROOT,
    "amqtt_rest_bridge.group.commands.COMMAND_TOPIC": COMMAND,
    "amqtt_rest_bridge.group.commands.ROOT": ROOT,
}


class Tool:
    """What publishes commands and reads their answers."""

    def __init__(self, broker: Mosquitto) -> None:
        self._broker = broker
        self.client: Client = broker.client().subscribe(OUTPUT)

    def call(self, command: str, request_id: str = "cursor-1") -> dict[str, Any]:
        """Publish a command, and return the next answer."""
        self.client.publish(COMMAND, f"{command} -requestId {request_id}".encode())
        topic, payload = self.client.next()
        answer: dict[str, Any] = json.loads(payload)
        assert (topic, answer["requestId"]) == (OUTPUT, request_id)
        return answer

    def routes(self) -> list[str]:
        """Return the names of the routes that `-listRoutes` lists."""
        return [one["name"] for one in self.call("-listRoutes")["data"]]

    def retained(self, name: str) -> bytes | None:
        """Return what the broker retains on a topic of commands."""
        client = self._broker.client().subscribe(f"{ROOT}/{name}", "marks")
        client.publish("marks", b"")
        topic, payload = client.next()
        client.close()
        return payload if topic != "marks" else None


def start(group: Group, slot: int, **settings: Any) -> Worker:
    """Start a worker whose routes come from a file and from commands; it looks for changed files often."""
    live = {"users": ["editor"], "routes": str(group.folder / "live")}
    group.routes(FILE_ROUTE)
    worker = group.start(slot, constants=TOPICS, coreflux=live, reload_seconds=0.1, status_seconds=0.2, **settings)
    return worker.ready()


def test_one_worker_answers_each_command_and_all_serve_what_it_adds(group: Group) -> None:
    tool = Tool(group.broker)
    first, second = start(group, 0), start(group, 1)
    assert tool.retained("Version") == own_version().encode()
    with recording() as target:
        code = definition("Cell").replace("http://127.0.0.1:1", target.url)
        assert tool.call(f"-addRoute {code}")["message"] == "Route 'Cell' added successfully."
        assert tool.routes() == ["FromFile", "Cell"]
        served = group.broker.client().subscribe("bridge/plant/workers/+/routes/Cell/status", "in/out")
        workers = set[str]()
        while workers != {first.id(), second.id()}:
            served.publish("in/in", b"payload")
            topic, payload = served.next()
            if topic != "in/out" and json.loads(payload)["messages"]["succeeded"]:
                workers.add(topic.split("/")[3])
    assert tool.retained("Routes/Cell") == code.encode()
    assert tool.call("-removeRoute Cell")["success"]
    assert tool.retained("Routes/Cell") is None
    assert tool.call("-removeRoute Cell")["message"] == "Route 'Cell' not found."
    first.stop()
    eventually(lambda: tool.routes() == ["FromFile"])  # by the second one, once it has looked
    assert tool.retained("Routes/FromFile") is not None
    assert tool.client.messages.empty()  # each was answered once


def test_the_next_worker_answers_what_a_killed_one_has_not(group: Group) -> None:
    tool = Tool(group.broker)
    first, second = start(group, 0, adopt_seconds=3), start(group, 1, adopt_seconds=3)
    assert tool.call(f"-addRoute {definition('Old')}")["success"]
    assert tool.routes() == ["FromFile", "Old"]
    first.send(signal.SIGSTOP)
    (group.folder / "live" / "Old.lot").unlink()
    tool.client.publish(COMMAND, f"-addRoute {definition('New')}".encode())
    first.kill()
    while tool.client.next() != (OUTPUT, b"Route 'New' added successfully."):
        pass  # the last answer comes again if it was stopped before it had acknowledged that command
    second.wrote("slot 0 of group plant has lost its worker")
    assert tool.routes() == ["FromFile", "New"]
    eventually(lambda: tool.retained("Routes/Old") is None, "a route that is gone stays in the tree")


def test_commands_are_refused_as_in_amqtt(group: Group) -> None:
    tool = Tool(group.broker)
    start(group, 0)
    (fault,) = tool.call(f"-addRoute {definition('Cell').replace('ENDPOINT', 'ENDPIONT')}")["errors"]
    assert (fault["line"], fault["column"], fault["suggestions"]) == (8, 14, ["did you mean ENDPOINT?"])
    (fault,) = tool.call(f"-addRoute {definition('FromFile')}")["errors"]
    assert fault["message"] == "there are two routes FromFile"
    assert "routes of type REST_API only" in tool.call("-addModel DEFINE MODEL X")["message"]
    assert "at most 256 KiB" in tool.call("-addRoute " + "x" * (300 << 10))["message"]
    for _ in range(100):
        tool.client.publish(COMMAND, b"-removeRoute " + b"x" * (200 << 10), wait=False)
    answers = [payload for _, payload in tool.client.collect(100)]
    assert any(b"commands wait already; send it again" in answer for answer in answers)
    assert tool.routes() == ["FromFile"]
    assert not list((group.folder / "live").iterdir())


def test_a_broker_that_forbids_these_topics_ends_the_start(group: Group) -> None:
    group.routes(FILE_ROUTE)
    live = {"users": ["editor"], "routes": str(group.folder / "live")}
    ended = run(group.folder, broker=group.broker.url, routes=str(group.folder / "routes"), coreflux=live)
    assert reason_of(ended).startswith("the broker does not let this worker publish below $SYS/Coreflux, which the ")
