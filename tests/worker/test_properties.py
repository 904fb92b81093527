"""Properties of MQTT 5 beside mosquitto: placeholders, trace context, Response Topic and Correlation Data."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.support.asking import ask
from tests.support.http_target import Peer, Target, echo, reply
from tests.worker.mosquitto import SECONDS, Client, Mosquitto
from tests.worker.workers import Group, client_route

pytestmark = pytest.mark.mosquitto

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATER = "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01"
SERVER = """
DEFINE ROUTE Ask WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "{port}" WITH REQUEST_TIMEOUT 5
    ADD EVENT Publish WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "asked"
    ADD EVENT Shared WITH METHOD "POST" WITH ENDPOINT "/shared" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "answers"
    ADD EVENT Own WITH METHOD "POST" WITH ENDPOINT "/own" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "answers/{{request_id}}"
"""


def user(message: paho.MQTTMessage) -> dict[str, str]:
    pairs = dict(getattr(message.properties, "UserProperty", ()))
    del pairs["rest-bridge-hops"]
    return pairs


def marks(message: paho.MQTTMessage) -> tuple[str, bytes]:
    """Return where the reply to a request goes, and the Correlation Data that it must have."""
    properties: Any = message.properties
    return properties.ResponseTopic, properties.CorrelationData


def asked(client: Client) -> tuple[str, bytes]:
    return marks(client.messages.get(timeout=SECONDS))


def test_a_user_property_fills_placeholders_and_one_that_is_missing_fails_the_call(
    group: Group, mosquitto: Mosquitto
) -> None:
    headers = 'ADD "X-Site" "{property.site}" ADD "X-Line" "{property.line|none}" WITH ERROR_TOPIC "errors"'
    with Target(echo) as target:
        group.routes(client_route("R", target.port, "in/+", path="/{property.site}", event=headers))
        group.start().ready()
        client = mosquitto.client().subscribe("results/R", "errors")
        client.publish("in/1", b"1", user=(("site", "other"), ("site", "a/b?c"), ("Site", "no")))
        assert client.next() == ("results/R", b"1")
        client.publish("in/1", b"2", user=(("site", ".."),))
        client.publish("in/1", b"3")
        errors = {json.loads(payload)["error"]["code"] for _, payload in client.collect(2)}
    (seen,) = target.requests
    assert (seen.path, seen.headers["x-site"], seen.headers["x-line"]) == ("/a%2Fb%3Fc", "a/b?c", "none")
    assert errors == {"invalid_value", "placeholder_unresolved"}


def test_the_trace_context_of_a_message_goes_with_its_request_and_on_with_the_result(
    group: Group, mosquitto: Mosquitto
) -> None:
    def server(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            peer.send(reply(b"", "200 OK", *(["TraceParent: " + LATER] if seen.body == b"answered" else [])))

    with Target(server) as target:
        group.routes(client_route("R", target.port, "in"))
        group.start().ready()
        client = mosquitto.client().subscribe("results/R")
        sent = (("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "k=v"), ("other", "x"))
        for body, pairs in (
            (b"answered", sent), (b"silent", sent), (b"none", ()),
            (b"malformed", (("traceparent", f"{PARENT}, {LATER}"),)),
        ):  # fmt: skip
            client.publish("in", body, user=pairs)
        results = [user(client.messages.get(timeout=SECONDS)) for _ in range(4)]
    names = ("traceparent", "tracestate", "baggage", "other")
    requests = {seen.body: [seen.headers[name] for name in names] for seen in target.requests}
    assert requests == {
        b"answered": [PARENT, "a=1", "k=v", None],
        b"silent": [PARENT, "a=1", "k=v", None],
        b"malformed": [None] * 4,
        b"none": [None] * 4,
    }
    trace = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v"}
    assert sorted(results, key=str) == sorted([{"traceparent": LATER}, trace, {}, {}], key=str)


def test_headers_of_the_route_win_over_the_trace_context_of_the_message(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        event = f'ADD "Traceparent" "{LATER}"'
        group.routes(client_route("R", target.port, "in", event=event))
        group.start().ready()
        client = mosquitto.client().subscribe("results/R")
        client.publish("in", b"1", user=(("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "k=v")))
        client.next()
    (seen,) = target.requests
    assert [seen.headers[name] for name in ("traceparent", "tracestate", "baggage")] == [LATER, None, "k=v"]


def test_a_request_passes_its_trace_context_on_to_the_message(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    group.routes(SERVER.format(port=unused_port))
    group.start().ready()
    client = mosquitto.client().subscribe("asked")
    ask(unused_port, "/hook", b"?", traceparent=PARENT, tracestate="a=1", baggage="k=v", other="x")
    ask(unused_port, "/hook", b"?", traceparent="broken", tracestate="a=1")
    passed = [user(client.messages.get(timeout=SECONDS)) for _ in range(2)]
    assert passed == [{"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v"}, {}]


def test_the_trace_context_of_a_reply_goes_with_the_response(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    group.routes(SERVER.format(port=unused_port))
    group.start().ready()
    client = mosquitto.client().subscribe("asked")

    def trace() -> list[str | None]:
        headers = ask(unused_port, "/own", b"?").headers
        return [headers[name] for name in ("traceparent", "tracestate", "baggage", "other")]

    pairs = ("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "k=v"), ("other", "x")
    with ThreadPoolExecutor(2) as callers:
        for user_properties, carried in (
            (pairs, [PARENT, "a=1", "k=v", None]),
            ((("traceparent", PARENT), ("baggage", "malformed")), [PARENT, None, None, None]),
            ((), [None] * 4),
        ):
            answer = callers.submit(trace)
            topic, mark = asked(client)
            client.publish(topic, b"reply", correlation=mark, user=user_properties)
            assert answer.result() == carried


def test_replies_on_one_topic_reach_the_requests_that_their_correlation_data_names(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    """Two workers: the answers come in reverse, twice, and between hostile ones."""
    group.routes(SERVER.format(port=unused_port))
    for slot in (0, 1):
        group.start(slot).ready()
    client = mosquitto.client().subscribe("asked")
    with ThreadPoolExecutor(20) as callers:
        answers = {number: callers.submit(ask, unused_port, "/shared", b"%d" % number) for number in range(20)}
        requests = [client.messages.get(timeout=SECONDS) for _ in answers]
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
        assert {number: answer.result()[:2] for number, answer in answers.items()} == {
            number: (200, b"reply to %d" % number) for number in range(20)
        }


def test_a_reply_on_a_topic_of_its_own_needs_no_correlation_data_and_no_other_request_s(
    group: Group, mosquitto: Mosquitto, unused_port: int
) -> None:
    group.routes(SERVER.format(port=unused_port))
    group.start().ready()
    client = mosquitto.client().subscribe("asked")
    with ThreadPoolExecutor(2) as callers:
        unmarked = callers.submit(ask, unused_port, "/own", b"?")
        topic, first = asked(client)
        client.publish(topic, b"without")
        assert unmarked.result()[:2] == (200, b"without")
        marked = callers.submit(ask, unused_port, "/own", b"?")
        topic, second = asked(client)
        client.publish(topic, b"late", correlation=first)
        client.publish(topic, b"with", correlation=second)
        assert marked.result()[:2] == (200, b"with")
