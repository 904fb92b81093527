"""Properties of MQTT 5 beside mosquitto: placeholders, trace context, Response Topic and Correlation Data."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.support.asking import ask
from tests.support.http_target import Peer, Target, reply
from tests.support.ports import free_port
from tests.worker.mosquitto import SECONDS, Client, Mosquitto
from tests.worker.workers import Group, client_route

pytestmark = pytest.mark.mosquitto

TRACE = ("traceparent", "tracestate", "baggage", "other")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATER = "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01"
SENT = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v", "other": "x"}
CARRIED = [PARENT, "a=1", "k=v", None]
SERVER = """
DEFINE ROUTE Ask WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "{port}" WITH REQUEST_TIMEOUT 5
    ADD EVENT Publish WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "asked"
    ADD EVENT Shared WITH METHOD "POST" WITH ENDPOINT "/shared" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "answers"
    ADD EVENT Own WITH METHOD "POST" WITH ENDPOINT "/own" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "answers/{{request_id}}"
"""


@dataclass(frozen=True)
class Workers:
    """Two workers with the routes of all tests; `port` is that of their HTTP server."""

    broker: Mosquitto
    target: Target
    port: int

    def client(self, *filters: str) -> Client:
        return self.broker.client().subscribe(*filters)


def answer(peer: Peer) -> None:
    """Answer with the body that came, and to `answered` with a trace context."""
    while (seen := peer.request()) is not None:
        peer.send(reply(seen.body, "200 OK", *(["TraceParent: " + LATER] if seen.body == b"answered" else [])))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder, port = tmp_path_factory.mktemp("workers"), free_port()
    with Mosquitto(folder) as broker, Group(folder, broker) as group, Target(answer) as target:
        filled = 'ADD "X-Site" "{property.site}" ADD "X-Line" "{property.line|none}" WITH ERROR_TOPIC "errors"'
        group.routes(
            SERVER.format(port=port),
            client_route("Filled", target.port, "filled", path="/{property.site}", event=filled),
            client_route("Traced", target.port, "traced"),
            client_route("Own", target.port, "own", event=f'ADD "Traceparent" "{LATER}"'),
        )
        for slot in (0, 1):
            group.start(slot).ready()
        yield Workers(broker, target, port)


def user(message: paho.MQTTMessage) -> dict[str, str]:
    pairs = dict(getattr(message.properties, "UserProperty", ()))
    del pairs["rest-bridge-hops"]
    return pairs


def marks(message: paho.MQTTMessage) -> tuple[str, bytes]:
    """Return where the reply to a request goes, and the Correlation Data that it must have."""
    properties: Any = message.properties
    return properties.ResponseTopic, properties.CorrelationData


def next_of(client: Client) -> paho.MQTTMessage:
    return client.messages.get(timeout=SECONDS)


def test_a_user_property_fills_placeholders_and_one_that_is_missing_fails_the_call(workers: Workers) -> None:
    client = workers.client("results/Filled", "errors")
    client.publish("filled", b"1", user=(("site", "other"), ("site", "a/b?c"), ("Site", "no")))
    assert client.next() == ("results/Filled", b"1")
    client.publish("filled", b"2", user=(("site", ".."),))
    client.publish("filled", b"3")
    errors = {json.loads(payload)["error"]["code"] for _, payload in client.collect(2)}
    (seen,) = (one for one in workers.target.requests if one.headers["x-site"])
    assert (seen.path, seen.headers["x-site"], seen.headers["x-line"]) == ("/a%2Fb%3Fc", "a/b?c", "none")
    assert errors == {"invalid_value", "placeholder_unresolved"}


def test_the_trace_context_of_a_message_goes_with_its_request_and_on_with_the_result(workers: Workers) -> None:
    client = workers.client("results/Traced")
    malformed = {"traceparent": f"{PARENT}, {LATER}"}
    for body, pairs in {b"answered": SENT, b"silent": SENT, b"none": {}, b"malformed": malformed}.items():
        client.publish("traced", body, user=tuple(pairs.items()))
    results = {bytes(message.payload): user(message) for message in (next_of(client) for _ in range(4))}
    sent = {seen.body: [seen.headers[name] for name in TRACE] for seen in workers.target.requests}
    nothing: list[None] = [None] * 4
    expected = {b"answered": CARRIED, b"silent": CARRIED, b"none": nothing, b"malformed": nothing}
    assert {body: sent[body] for body in results} == expected
    trace = {name: SENT[name] for name in TRACE[:3]}
    assert results == {b"answered": {"traceparent": LATER}, b"silent": trace, b"none": {}, b"malformed": {}}


def test_headers_of_the_route_win_over_the_trace_context_of_the_message(workers: Workers) -> None:
    client = workers.client("results/Own")
    client.publish("own", b"own", user=tuple(SENT.items()))
    client.next()
    (seen,) = (one for one in workers.target.requests if one.body == b"own")
    assert [seen.headers[name] for name in TRACE] == [LATER, None, "k=v", None]


def test_a_request_passes_its_trace_context_on_to_the_message(workers: Workers) -> None:
    client = workers.client("asked")
    ask(workers.port, "/hook", b"?", **SENT)
    ask(workers.port, "/hook", b"?", traceparent="broken", tracestate="a=1")
    assert [user(next_of(client)) for _ in range(2)] == [{name: SENT[name] for name in TRACE[:3]}, {}]


def test_the_trace_context_of_a_reply_goes_with_the_response(workers: Workers) -> None:
    client = workers.client("asked")
    malformed = {"traceparent": PARENT, "baggage": "malformed"}
    with ThreadPoolExecutor(1) as caller:
        for pairs, carried in ((SENT, CARRIED), (malformed, [PARENT, *[None] * 3]), ({}, [None] * 4)):
            answered = caller.submit(ask, workers.port, "/own", b"?")
            topic, mark = marks(next_of(client))
            client.publish(topic, b"reply", correlation=mark, user=tuple(pairs.items()))
            headers = answered.result().headers
            assert [headers[name] for name in TRACE] == carried


def test_replies_on_one_topic_reach_the_requests_that_their_correlation_data_names(workers: Workers) -> None:
    """Two workers: the answers come in reverse, twice, and between hostile ones."""
    client = workers.client("asked")
    with ThreadPoolExecutor(20) as callers:
        answers = {number: callers.submit(ask, workers.port, "/shared", b"%d" % number) for number in range(20)}
        requests = [next_of(client) for _ in answers]
        different = {marks(request) for request in requests}
        assert {(topic, len(mark)) for topic, mark in different} == {("answers", 16)}
        assert len(different) == 20
        client.publish("answers", b"unmarked")
        for hostile in (b"", bytes(16), bytes(65_000)):
            client.publish("answers", b"hostile", correlation=hostile)
        for request in reversed(requests):
            topic, mark = marks(request)
            client.publish("answers/elsewhere", b"another topic", correlation=mark)
            client.publish(topic, b"reply to %s" % request.payload, correlation=mark)
            client.publish(topic, b"repeated", correlation=mark)
        for number, answered in answers.items():
            assert answered.result()[:2] == (200, b"reply to %d" % number)


def test_a_reply_on_a_topic_of_its_own_needs_no_correlation_data_and_no_other_request_s(workers: Workers) -> None:
    client = workers.client("asked")
    with ThreadPoolExecutor(1) as caller:
        unmarked = caller.submit(ask, workers.port, "/own", b"?")
        topic, first = marks(next_of(client))
        client.publish(topic, b"without")
        assert unmarked.result()[:2] == (200, b"without")
        marked = caller.submit(ask, workers.port, "/own", b"?")
        topic, second = marks(next_of(client))
        client.publish(topic, b"late", correlation=first)
        client.publish(topic, b"with", correlation=second)
        assert marked.result()[:2] == (200, b"with")
