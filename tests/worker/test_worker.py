"""One worker beside mosquitto: what becomes of messages and requests."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import ask
from tests.support.http_target import Peer, Target, reply
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.workers import LOSSLESS, ORDERED, Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

SERVER = """
DEFINE ROUTE Intake WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "{port}"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "received"
    ADD EVENT State WITH METHOD "GET" WITH ENDPOINT "/state" WITH SOURCE_TOPIC "state"
    ADD EVENT One WITH METHOD "GET" WITH ENDPOINT "/states/{{name}}" WITH SOURCE_TOPIC "states/{{path.name}}"
    ADD EVENT Live WITH METHOD "GET" WITH ENDPOINT "/live" WITH SOURCE_TOPIC "states/#" WITH STREAM "true"
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask" WITH DESTINATION_TOPIC "asked/{{request_id}}"
        WITH REPLY_TOPIC "answers/{{request_id}}"
"""
FILTERS = {"Plus": "a/+", "Rest": "a/#", "Exact": "a/b", "Same": "a/+"}


def answer(peer: Peer) -> None:
    """Answer with the body that came; 503 the first time that a body comes to `/again`."""
    while (seen := peer.request()) is not None:
        is_first = seen.path == "/again" and [one.body for one in peer.server.requests].count(seen.body) == 1
        peer.send(reply(status="503 Later") if is_first else reply(seen.body))


@dataclass(frozen=True)
class Plant:
    """A worker with the routes of several tests; `port` is that of its HTTP server."""

    broker: Mosquitto
    worker: Worker
    target: Target
    port: int

    def client(self, *filters: str) -> Client:
        return self.broker.client().subscribe("results/#", *filters)


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder, port = tmp_path_factory.mktemp("plant"), free_port()
    with Mosquitto(folder) as broker, Group(folder, broker) as group, Target(answer) as target:
        retained = broker.client()
        for topic, payload in {"kept": b"retained", "state": b"retained", "states/a": b"1"}.items():
            retained.publish(topic, payload, retain=True)
        group.routes(
            SERVER.format(port=port),
            client_route("Echo", target.port, "in/+"),
            client_route("Kept", target.port, "kept"),
            client_route("KeptInOrder", target.port, "kept", event=ORDERED),
            *(client_route(name, target.port, topic) for name, topic in FILTERS.items()),
            client_route("Lossless", target.port, "a/+", config=LOSSLESS),
            client_route("InOrder", target.port, "a/+", event=ORDERED),
            client_route("Named", target.port, "named").replace("results/Named", "results/{value.json.name}"),
            client_route("Safe", target.port, "safe", config=LOSSLESS, path="/again"),
            client_route("Loop", target.port, "results/Loop"),
        )
        worker = group.start(slots=1, status_seconds=1, max_message_bytes="1KiB").ready()
        yield Plant(broker, worker, target, port)


def test_a_message_is_sent_and_its_answer_published(plant: Plant) -> None:
    client = plant.client()
    for qos in (0, 1, 2):
        client.publish("in/1", b"%d" % qos, qos=qos)
        assert client.next() == ("results/Echo", b"%d" % qos)


def test_a_retained_message_does_not_trigger(plant: Plant) -> None:
    client = plant.client()
    client.publish("kept", b"live", retain=True)
    assert sorted(client.collect(2)) == [("results/Kept", b"live"), ("results/KeptInOrder", b"live")]
    assert b"retained" not in [seen.body for seen in plant.target.requests]


def test_overlapping_filters_run_each_event_once(plant: Plant) -> None:
    client = plant.client()
    client.publish("a/b", b"x")
    names = [topic.removeprefix("results/") for topic, _ in client.collect(6)]
    assert sorted(names) == sorted([*FILTERS, "Lossless", "InOrder"])
    client.publish("a/b/c", b"y")
    assert client.next() == ("results/Rest", b"y")


def test_a_value_that_no_broker_takes_in_a_topic_fails_its_call_and_no_other(plant: Plant) -> None:
    """Mosquitto ends the connection of a client that publishes on a topic with a noncharacter."""
    client = plant.client()
    client.publish("named", rb'{"name": "\uffff"}')
    client.publish("named", b'{"name": "good"}')
    assert client.next() == ("results/good", b'{"name": "good"}')
    plant.worker.wrote("holds a character that would change the topic")
    assert not plant.worker.has_written("lost its connection")


def test_routes_chain_up_to_eight_hops(plant: Plant) -> None:
    client = plant.client("bridge/plant/workers/+/routes/Loop/status")
    client.publish("results/Loop", b"x")
    plant.worker.wrote("went through 8 routes")
    found = []
    while (message := client.next())[0] == "results/Loop" or not json.loads(message[1])["messages"]["refused"]:
        found.append(message)
    assert found.count(("results/Loop", b"x")) == 1 + 8


def test_a_lossless_call_has_the_publishers_key_or_one_that_stays(plant: Plant) -> None:
    client = plant.client()
    client.publish("safe", b"a", user=(("Idempotency-Key", "order-17"),))
    client.publish("safe", b"b", correlation=b"invoice-4")
    client.publish("safe", b"c")
    client.collect(3)
    calls = [seen for seen in plant.target.requests if seen.path == "/again"]
    keys = {body: [seen.headers["Idempotency-Key"] for seen in calls if seen.body == body] for body in (b"a", b"b")}
    assert keys == {b"a": ["order-17"] * 2, b"b": ["invoice-4"] * 2}
    first, second = (seen.headers["Idempotency-Key"] for seen in calls if seen.body == b"c")
    assert first == second


def test_a_message_over_max_message_bytes_fails_in_a_lossless_route_too(plant: Plant) -> None:
    client = plant.client()
    client.publish("safe", b"x" * 1025)
    client.publish("safe", b"x" * 1024)
    fits, failure = sorted(payload for _, payload in client.collect(2))
    assert (fits, json.loads(failure)["error"]["code"]) == (b"x" * 1024, "payload_too_large")


def test_read_events_and_replies(plant: Plant) -> None:
    client = plant.client("asked/#")
    for payload in (b"retained", b"newer"):
        client.publish("state", payload, retain=True)
        eventually(lambda payload=payload: ask(plant.port, "/state")[:2] == (200, payload), "it is not known")  # type: ignore[misc]
    with ThreadPoolExecutor(1) as caller:
        answered = caller.submit(ask, plant.port, "/ask", b"what")
        topic, payload = client.next()
        client.publish(topic.replace("asked", "answers"), payload + b"?")
        assert answered.result()[:2] == (200, b"what?")


def test_reads_that_the_path_names_and_streams(plant: Plant) -> None:
    eventually(lambda: ask(plant.port, "/states/a")[:2] == (200, b"1"), "the retained message is not known")
    assert ask(plant.port, "/states/b").status == 404
    with urllib.request.urlopen(f"http://127.0.0.1:{plant.port}/live", timeout=30) as stream:
        data = (line.decode().removeprefix("data: ") for line in stream if line.startswith(b"data: "))
        assert json.loads(next(data)) == {"states/a": 1}
        plant.client().publish("states/b", b"2")
        assert json.loads(next(data)) == {"states/b": 2}
    assert ask(plant.port, "/states/b")[:2] == (200, b"2")


def test_a_result_for_which_the_broker_ends_the_connection_is_dropped_and_costs_no_other_one(
    group: Group, target: Target
) -> None:
    """Mosquitto takes topics of 201 levels, and the results here have one more."""
    group.routes(client_route("Deep", target.port, "in/#").replace("results/Deep", "results/{topic}"))
    worker = group.start().ready()
    for number in range(20):
        group.client.publish(f"in/{number}", b"x", wait=False)
        if number == 5:
            group.client.publish("in/" + "/".join("x" * 200), b"poison", wait=False)
    wanted = {f"results/in/{number}" for number in range(20)}
    found: set[str] = set()
    while found != wanted:  # a result whose acknowledgement was lost comes again
        found.add(group.client.next()[0])
        assert found <= wanted
    worker.wrote("each connection on which it is sent ends: Protocol error")
    group.client.publish("in/last", b"x")
    while group.client.next()[0] != "results/in/last":
        pass


def test_a_result_that_the_broker_refuses_is_an_error_of_its_route(tmp_path: Path, target: Target) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\ntopic deny results/Denied\n")
    with Mosquitto(tmp_path, f"acl_file {acl}\n") as broker, Group(tmp_path, broker) as group:
        group.routes(client_route("Denied", target.port, "in"), client_route("Echo", target.port, "well"))
        worker = group.start().ready()
        client = group.watched().client.subscribe("bridge/plant/workers/+/routes/+/status")
        client.publish("in", b"x")
        worker.wrote("not published on results/Denied: the broker answers Not authorized")
        while (status := json.loads(client.next()[1]))["health"] == "Green":
            pass
        assert (status["name"], status["health"], status["last_error"]["code"]) == ("Denied", "Yellow", "not_published")
        client.publish("well", b"y")
        while (found := client.next())[0] != "results/Echo":
            assert json.loads(found[1])["name"] != "Echo" or json.loads(found[1])["health"] == "Green"


def test_a_request_is_answered_when_the_broker_has_its_publication(group: Group, unused_port: int) -> None:
    group.routes(SERVER.format(port=unused_port))
    worker = group.start(admin_port=0).ready()
    admin, client = worker.admin_port(), group.client.subscribe("received")
    assert ask(admin, "/readyz").status == 200
    assert ask(unused_port, "/hook", b"hello").status == 200
    assert client.next() == ("received", b"hello")
    group.broker.kill()
    worker.line("lost its connection")
    refused = ask(unused_port, "/hook", b"lost")
    assert (refused.status, refused.json["error"]["code"]) == (503, "broker_unavailable")
    unready = ask(admin, "/readyz")
    ((name, _, why),) = (reason.partition(" is not connected to ") for reason in unready.json["reasons"])
    assert (unready.status, name[:6], why.partition(": ")[0]) == (503, "plant-", group.broker.url)
    group.broker.start()
    worker.line("is connected again")
    for port, path, body in ((unused_port, "/hook", b"again"), (admin, "/readyz", None)):
        eventually(lambda asked=(port, path, body): ask(*asked).status == 200, "the broker is back")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("config", "settings", "large", "most"),
    [
        pytest.param('WITH OVERLOAD_BYTES "512KiB"', {}, "payloads", 3, id="OVERLOAD_BYTES"),
        pytest.param("", {"queue_bytes": "512KiB"}, "payloads", 3, id="queue_bytes"),
        pytest.param('WITH OVERLOAD_BYTES "64KiB"', {}, "properties", 9, id="OVERLOAD_BYTES, of properties"),
    ],
)
def test_payloads_that_a_lossless_route_has_no_room_for_stay_at_the_broker_and_none_is_lost(
    group: Group, config: str, settings: dict[str, Any], large: str, most: int
) -> None:
    """`most`: as many as are called at once, the last of which begins below the bound."""
    times, user = (22_000, ()) if large == "payloads" else (1, (("large", "x" * 8000),))
    bodies = [f"{number:09}".encode() * times for number in range(12)]  # 198 kB each, or 9 bytes
    released = threading.Event()

    def holding(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            if seen.path == "/hang":
                released.wait(60)
            peer.send(reply(seen.body[:9]))

    with Target(holding) as target:
        group.routes(
            client_route("Slow", target.port, "slow/#", config=f"{LOSSLESS} {config}", path="/hang"),
            client_route("Other", target.port, "other", config=LOSSLESS),
        )
        group.start(slots=1, **settings).ready()
        for number, body in enumerate(bodies):
            group.client.publish(f"slow/{number}", body, user=user)

        def called() -> list[bytes]:
            return [seen.body for seen in list(target.requests) if seen.path == "/hang"]

        eventually(lambda: len(called()) >= most)
        group.client.publish("other", b"fine")
        assert group.client.next() == ("results/Other", b"fine")
        assert len(called()) == most
        released.set()
        assert sorted(group.client.collect(12)) == [("results/Slow", body[:9]) for body in bodies]
        assert sorted(called()) == bodies
