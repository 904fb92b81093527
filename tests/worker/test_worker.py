"""One worker beside mosquitto: what becomes of messages and requests."""

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import Answered, ask
from tests.support.http_target import Peer, Target, answering, echo, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import LOSSLESS, Group, client_route

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


def test_a_message_is_sent_and_its_answer_published(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        group.routes(client_route("Echo", target.port, "in/+"))
        group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        for qos in (0, 1, 2):
            client.publish("in/1", b"%d" % qos, qos=qos)
            assert client.next() == ("results/Echo", b"%d" % qos)


def test_a_message_is_acknowledged_when_its_result_is_published(group: Group, mosquitto: Mosquitto) -> None:
    """What a killed worker held comes again; what had ended does not."""
    with Target(echo) as target, Target(lambda peer: peer.wait()) as hanging:
        fast, slow = client_route("Fast", target.port, "in"), client_route("Slow", hanging.port, "slow")
        group.routes(fast + slow)
        worker = group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        client.publish("in", b"ended")
        assert client.next()[1] == b"ended"
        client.publish("slow", b"held")
        eventually(lambda: hanging.connections > 0, "the slow server was not called")
        worker.kill()
        group.routes(fast + client_route("Slow", target.port, "slow"))
        group.start().ready()
        assert client.next() == ("results/Slow", b"held")
        client.publish("in", b"last")
        assert client.next()[1] == b"last"
        assert [seen.body for seen in target.requests] == [b"ended", b"held", b"last"]


def test_messages_that_were_published_while_no_worker_ran_come_when_it_starts(
    group: Group, mosquitto: Mosquitto
) -> None:
    with Target(echo) as target:
        group.routes(client_route("Safe", target.port, "in/#", config=LOSSLESS))
        assert group.start().ready().stop() == 0
        client = mosquitto.client().subscribe("results/#")
        for number in range(50):
            client.publish(f"in/{number}", b"%d" % number)
        group.start().ready()
        assert sorted(int(payload) for _, payload in client.collect(50)) == list(range(50))


def test_a_retained_message_does_not_trigger(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        client = mosquitto.client().subscribe("results/#")
        client.publish("in", b"retained", retain=True)
        ordered = client_route("Ordered", target.port, "in", event='WITH ORDERED "true"')
        group.routes(client_route("Echo", target.port, "in") + ordered)
        group.start(slots=1).ready()
        client.publish("in", b"live", retain=True)
        assert sorted(client.collect(2)) == [("results/Echo", b"live"), ("results/Ordered", b"live")]


def test_overlapping_filters_run_each_event_once(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        filters = {"Plus": "a/+", "Rest": "a/#", "Exact": "a/b", "Same": "a/+"}
        routes = [client_route(name, target.port, topic) for name, topic in filters.items()]
        routes.append(client_route("Lossless", target.port, "a/+", config=LOSSLESS))
        routes.append(client_route("InOrder", target.port, "a/+", event='WITH ORDERED "true"'))
        group.routes("".join(routes))
        group.start(slots=1).ready()
        client = mosquitto.client().subscribe("results/#")
        client.publish("a/b", b"x")
        names = [topic.removeprefix("results/") for topic, _ in client.collect(6)]
        assert sorted(names) == sorted([*filters, "Lossless", "InOrder"])
        client.publish("a/b/c", b"y")
        assert client.next() == ("results/Rest", b"y")


def test_a_value_that_no_broker_takes_in_a_topic_fails_its_call_and_no_other(
    group: Group, mosquitto: Mosquitto
) -> None:
    """Mosquitto ends the connection of a client that publishes on a topic with a noncharacter."""
    with Target(echo) as target:
        group.routes(client_route("Named", target.port, "in").replace("results/Named", "results/{value.json.name}"))
        worker = group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        client.publish("in", rb'{"name": "\uffff"}')
        client.publish("in", b'{"name": "good"}')
        assert client.next() == ("results/good", b'{"name": "good"}')
        worker.wrote("holds a character that would change the topic")
        assert not worker.has_written("lost its connection")


def test_a_result_for_which_the_broker_ends_the_connection_is_dropped_and_costs_no_other_one(
    group: Group, mosquitto: Mosquitto
) -> None:
    """Mosquitto takes topics of 201 levels, and the results here have one more."""
    deepest = "in/" + "/".join("x" * 200)
    with Target(echo) as target:
        group.routes(client_route("Deep", target.port, "in/#").replace("results/Deep", "results/{topic}"))
        worker = group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        for number in range(20):
            client.publish(f"in/{number}", b"x", wait=False)
            if number == 5:
                client.publish(deepest, b"poison", wait=False)
        numbers: set[str] = set()
        while len(numbers) < 20:  # one whose acknowledgement was lost comes again
            numbers.add(client.next()[0])
        dropped = "each connection on which it is sent ends: Protocol error"
        worker.wrote(dropped)
        client.publish("in/last", b"x")
        while client.next()[0] != "results/in/last":
            pass
        assert numbers == {f"results/in/{number}" for number in range(20)}


def test_a_result_that_the_broker_refuses_is_an_error_of_its_route(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\ntopic deny results/Denied\n")
    with Mosquitto(tmp_path, f"acl_file {acl}\n") as broker, Group(tmp_path, broker) as group, Target(echo) as target:
        group.routes(client_route("Denied", target.port, "in") + client_route("Echo", target.port, "well"))
        worker = group.start().ready()
        client = broker.client().subscribe("results/#", "bridge/plant/workers/+/routes/+/status")
        client.publish("in", b"x")
        worker.wrote("not published on results/Denied: the broker answers Not authorized")
        while (status := json.loads(client.next()[1]))["health"] == "Green":
            pass
        assert (status["name"], status["health"], status["last_error"]["code"]) == ("Denied", "Yellow", "not_published")
        client.publish("well", b"y")
        while (found := client.next())[0] != "results/Echo":
            assert json.loads(found[1])["name"] != "Echo" or json.loads(found[1])["health"] == "Green"


def test_routes_chain_up_to_eight_hops(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        group.routes(client_route("Loop", target.port, "results/Loop"))
        worker = group.start(status_seconds=1).ready()
        client = mosquitto.client().subscribe("results/#", "bridge/plant/workers/+/routes/Loop/status")
        client.publish("results/Loop", b"x")
        worker.line("went through 8 routes")
        messages = []
        while True:
            topic, payload = client.next()
            if topic == "results/Loop":
                messages.append(payload)
            elif json.loads(payload)["messages"]["refused"]:
                break
        assert len(messages) == 1 + 8


def test_a_request_is_answered_when_the_broker_has_its_publication(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    group.routes(SERVER.format(port=unused_port))
    worker = group.start(admin_port=0)
    admin = int(worker.line("status page and metrics").rpartition(":")[2])
    worker.ready()
    client = mosquitto.client().subscribe("received", "asked/#")
    assert ask(admin, "/readyz").status == 200
    assert ask(unused_port, "/hook", b"hello").status == 200
    assert client.next() == ("received", b"hello")
    mosquitto.kill()
    worker.line("lost its connection")
    status, body, _ = ask(unused_port, "/hook", b"lost")
    assert (status, json.loads(body)["error"]["code"]) == (503, "broker_unavailable")
    status, body, _ = ask(admin, "/readyz")
    lost = [reason.partition(" is not connected to ") for reason in json.loads(body)["reasons"]]
    assert (status, {address.partition(": ")[0] for _, _, address in lost}) == (503, {mosquitto.url})
    assert [name.startswith("plant-") for name, _, _ in lost] == [True]
    mosquitto.start()
    worker.line("is connected again")
    eventually(lambda: ask(unused_port, "/hook", b"again").status == 200, "the broker is back and requests are refused")
    eventually(lambda: ask(admin, "/readyz").status == 200, "the broker is back and the worker is not ready")


def test_read_events_and_replies(group: Group, mosquitto: Mosquitto, unused_port: int) -> None:
    client = mosquitto.client().subscribe("asked/#")
    client.publish("state", b"retained", retain=True)
    group.routes(SERVER.format(port=unused_port))
    group.start().ready()
    eventually(lambda: ask(unused_port, "/state")[:2] == (200, b"retained"), "the retained message is not known")
    client.publish("state", b"newer")
    eventually(lambda: ask(unused_port, "/state")[:2] == (200, b"newer"), "the newer message is not known")
    answers: list[Answered] = []
    caller = threading.Thread(target=lambda: answers.append(ask(unused_port, "/ask", b"what")))
    caller.start()
    topic, payload = client.next()
    client.publish(topic.replace("asked", "answers"), payload + b"?")
    caller.join()
    assert [answer[:2] for answer in answers] == [(200, b"what?")]


def test_reads_that_the_path_names_and_streams(group: Group, mosquitto: Mosquitto, unused_port: int) -> None:
    client = mosquitto.client()
    client.publish("states/a", b"1", retain=True)
    group.routes(SERVER.format(port=unused_port))
    group.start().ready()
    eventually(lambda: ask(unused_port, "/states/a")[:2] == (200, b"1"), "the retained message is not known")
    assert ask(unused_port, "/states/b").status == 404
    with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/live", timeout=30) as stream:
        data = (line.decode().removeprefix("data: ") for line in stream if line.startswith(b"data: "))
        assert json.loads(next(data)) == {"states/a": 1}
        client.publish("states/b", b"2")
        assert json.loads(next(data)) == {"states/b": 2}
    assert ask(unused_port, "/states/b")[:2] == (200, b"2")


def test_a_lossless_call_has_the_publishers_key_or_one_that_stays(group: Group, mosquitto: Mosquitto) -> None:
    def failing_once(peer: Peer) -> None:
        while peer.request() is not None:
            failed = len(peer.server.requests) <= 3
            peer.send(reply(status="503 Later") if failed else reply(b"ok"))

    with Target(failing_once) as target:
        group.routes(client_route("Safe", target.port, "in", config=LOSSLESS))
        group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        client.publish("in", b"a", user=(("Idempotency-Key", "order-17"),))
        client.publish("in", b"b", correlation=b"invoice-4")
        client.publish("in", b"c")
        client.collect(3)
        keys = {body: [seen.values("idempotency-key")[0] for seen in target.requests if seen.body == body] for body in
                (b"a", b"b", b"c")}  # fmt: skip
        assert {*keys[b"a"]} == {"order-17"}
        assert {*keys[b"b"]} == {"invoice-4"}
        assert len({*keys[b"c"]}) == 1 and len(target.requests) == 6


def test_properties_count_as_the_bytes_of_a_message_do(group: Group, mosquitto: Mosquitto) -> None:
    released = threading.Event()

    def hanging(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            released.wait(60)
            peer.send(reply(seen.body))

    with Target(hanging) as target:
        config = f'{LOSSLESS} WITH OVERLOAD_BYTES "64KiB"'
        group.routes(client_route("Slow", target.port, "slow/#", config=config))
        group.start(slots=1).ready()
        client = mosquitto.client().subscribe("results/#")
        for number in range(40):
            client.publish(f"slow/{number}", b"%d" % number, user=(("large", "x" * 8000),))
        eventually(lambda: len(target.requests) >= 9, "too few are called")
        threading.Event().wait(0.5)
        assert len(target.requests) == 9  # eight have less than 64 KiB
        released.set()
        assert {payload for _, payload in client.collect(40)} == {b"%d" % number for number in range(40)}


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        pytest.param('WITH OVERLOAD_BYTES "512KiB"', {}, id="OVERLOAD_BYTES"),
        pytest.param("", {"queue_bytes": "512KiB"}, id="queue_bytes"),
    ],
)
def test_payloads_that_a_lossless_route_has_no_room_for_stay_at_the_broker_and_none_is_lost(
    group: Group, mosquitto: Mosquitto, config: str, settings: dict[str, Any]
) -> None:
    bodies = [f"{number:09}".encode() * 22_000 for number in range(12)]  # 198 kB each
    released = threading.Event()

    def hanging(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            if seen.path == "/hang":
                released.wait(60)
            peer.send(reply(seen.body[:9]))

    with Target(hanging) as target:
        slow = client_route("Slow", target.port, "slow/#", config=f"{LOSSLESS} {config}", path="/hang")
        group.routes(slow + client_route("Other", target.port, "other", config=LOSSLESS))
        group.start(slots=1, **settings).ready()
        client = mosquitto.client().subscribe("results/#")
        for number, body in enumerate(bodies):
            client.publish(f"slow/{number}", body)
        client.publish("other", b"fine")
        assert client.next() == ("results/Other", b"fine")
        eventually(lambda: len(target.requests) == 4)
        released.set()
        assert sorted(client.collect(12)) == [("results/Slow", body[:9]) for body in bodies]
        assert sorted(seen.body for seen in target.requests[4:] + target.requests[:4] if seen.path == "/hang") == bodies


def test_a_message_over_max_message_bytes_fails_in_a_lossless_route_too(group: Group, mosquitto: Mosquitto) -> None:
    with Target(answering(reply(b"fine"))) as target:
        group.routes(client_route("Safe", target.port, "in", config=LOSSLESS))
        group.start(max_message_bytes="1KiB").ready()
        client = mosquitto.client().subscribe("results/#")
        client.publish("in", b"x" * 1025)
        client.publish("in", b"x" * 1024)
        results = sorted(payload for _, payload in client.collect(2))
        assert results[0] == b"fine"
        assert json.loads(results[1])["error"]["code"] == "payload_too_large"


def test_a_lossless_route_whose_server_is_gone_delays_no_other_route(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    with Target(answering(reply(b"fine"))) as target:
        dead = client_route("Dead", unused_port, "dead/#", config=f"{LOSSLESS} WITH OVERLOAD_CAPACITY 5")
        group.routes(dead + client_route("Other", target.port, "other", config=LOSSLESS))
        group.start().ready()
        client = mosquitto.client().subscribe("results/#")
        for number in range(50):
            client.publish(f"dead/{number}", b"x", qos=number % 2)
        client.publish("other", b"x")
        assert client.next() == ("results/Other", b"fine")
