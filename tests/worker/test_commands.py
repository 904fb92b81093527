"""The setting coreflux of a worker: commands of a group, one worker of which answers.

Mosquitto lets no client publish below `$SYS`, so here the workers' topics begin with another word.
"""

import json
import signal
from pathlib import Path
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


def start(group: Group, slot: int, **settings: Any) -> Worker:
    """Start a worker whose routes come from a file and from commands; it looks for changed files often."""
    live = {"users": ["editor"], "routes": str(group.folder / "live")}
    group.routes(FILE_ROUTE)
    return group.start(slot, constants=TOPICS, coreflux=live, reload_seconds=0.1, status_seconds=0.2, **settings)


def call(tool: Client, command: str, request_id: str = "cursor-1") -> dict[str, Any]:
    """Publish a command, and return the next answer."""
    tool.publish(COMMAND, f"{command} -requestId {request_id}".encode())
    topic, payload = tool.next()
    answer: dict[str, Any] = json.loads(payload)
    assert (topic, answer["requestId"]) == (OUTPUT, request_id)
    return answer


def retained(mosquitto: Mosquitto, topic: str) -> bytes | None:
    """Return what the broker retains on a topic."""
    client = mosquitto.client().subscribe(topic, "marks")
    client.publish("marks", b"")
    found = client.next()
    client.close()
    return found[1] if found[0] == topic else None


def names(answer: dict[str, Any]) -> list[str]:
    """Return the routes of a list."""
    return [one["name"] for one in answer["data"]]


def test_one_worker_answers_each_command_and_all_serve_what_it_adds(group: Group, mosquitto: Mosquitto) -> None:
    tool = mosquitto.client().subscribe(OUTPUT)
    first, second = start(group, 0).ready(), start(group, 1).ready()
    assert retained(mosquitto, f"{ROOT}/Version") == own_version().encode()
    with recording() as target:
        code = definition("Cell").replace("http://127.0.0.1:1", target.url)
        assert call(tool, f"-addRoute {code}")["message"] == "Route 'Cell' added successfully."
        assert names(call(tool, "-listRoutes")) == ["FromFile", "Cell"]
        served = mosquitto.client().subscribe("bridge/plant/workers/+/routes/Cell/status", "in/out")
        workers = set[str]()
        while workers != {first.id(), second.id()}:
            served.publish("in/in", b"payload")
            topic, payload = served.next()
            if topic != "in/out" and json.loads(payload)["messages"]["succeeded"]:
                workers.add(topic.split("/")[3])
    assert retained(mosquitto, f"{ROOT}/Routes/Cell") == code.encode()
    assert call(tool, "-removeRoute Cell")["success"]
    assert retained(mosquitto, f"{ROOT}/Routes/Cell") is None
    assert call(tool, "-removeRoute Cell")["message"] == "Route 'Cell' not found."
    assert first.stop() == 0, "\n".join(first.lines[-40:])
    eventually(lambda: names(call(tool, "-listRoutes")) == ["FromFile"])  # by the second one, once it has looked
    assert retained(mosquitto, f"{ROOT}/Routes/FromFile") is not None
    assert tool.messages.empty()  # each was answered once


def test_the_next_worker_answers_what_a_killed_one_has_not(group: Group, mosquitto: Mosquitto) -> None:
    tool = mosquitto.client().subscribe(OUTPUT)
    first, second = start(group, 0, adopt_seconds=3).ready(), start(group, 1, adopt_seconds=3).ready()
    assert call(tool, f"-addRoute {definition('Old')}")["success"]
    assert names(call(tool, "-listRoutes")) == ["FromFile", "Old"]
    first.send(signal.SIGSTOP)
    (group.folder / "live" / "Old.lot").unlink()
    tool.publish(COMMAND, f"-addRoute {definition('New')}".encode())
    first.kill()
    while tool.next() != (OUTPUT, b"Route 'New' added successfully."):
        pass  # the last answer comes again if it was stopped before it had acknowledged that command
    second.wrote("slot 0 of group plant has lost its worker")
    assert names(call(tool, "-listRoutes")) == ["FromFile", "New"]
    eventually(lambda: retained(mosquitto, f"{ROOT}/Routes/Old") is None, "a route that is gone stays in the tree")


def test_commands_are_refused_as_in_amqtt(group: Group, mosquitto: Mosquitto) -> None:
    tool = mosquitto.client().subscribe(OUTPUT)
    start(group, 0).ready()
    (fault,) = call(tool, f"-addRoute {definition('Cell').replace('ENDPOINT', 'ENDPIONT')}")["errors"]
    assert (fault["line"], fault["column"], fault["suggestions"]) == (8, 14, ["did you mean ENDPOINT?"])
    (fault,) = call(tool, f"-addRoute {definition('FromFile')}")["errors"]
    assert fault["message"] == "there are two routes FromFile"
    assert "routes of type REST_API only" in call(tool, "-addModel DEFINE MODEL X")["message"]
    assert "at most 256 KiB" in call(tool, "-addRoute " + "x" * (300 << 10))["message"]
    for _ in range(100):
        tool.publish(COMMAND, b"-removeRoute " + b"x" * (200 << 10), wait=False)
    answers = [payload for _, payload in tool.collect(100)]
    assert any(b"commands wait already; send it again" in answer for answer in answers)
    assert names(call(tool, "-listRoutes")) == ["FromFile"]
    assert not list((group.folder / "live").iterdir())


def test_a_broker_that_forbids_these_topics_ends_the_start(tmp_path: Path, mosquitto: Mosquitto) -> None:
    (tmp_path / "routes.lot").write_text(FILE_ROUTE)
    live = {"users": ["editor"], "routes": str(tmp_path / "live")}
    ended = run(tmp_path, broker=mosquitto.url, routes=str(tmp_path / "routes.lot"), coreflux=live)
    assert reason_of(ended).startswith("the broker does not let this worker publish below $SYS/Coreflux, which the ")
