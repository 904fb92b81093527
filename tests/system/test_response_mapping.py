"""PAYLOAD and DESTINATION_TOPIC with `{response...}`, and `{NAME|TEXT}`: from a message to what is published."""

import json

import pytest

from tests.support.doors import DOORS, Hosting
from tests.support.http_recorder import Recorder
from tests.support.http_target import Target, answering, reply


def route(port: int, settings: str) -> str:
    return f"""
        DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
            ADD EVENT E WITH SOURCE_TOPIC "in/+" WITH METHOD "GET" WITH ENDPOINT "/"
                {settings}
    """


@pytest.mark.parametrize("hosting", DOORS)
def test_one_field_of_the_response_is_published_on_a_topic_that_the_response_names(hosting: Hosting) -> None:
    answer = reply(b'{"price": 17.50, "zone": "DE"}', "200 OK", "X-Id: 7", "x-id: 8")
    settings = """
        WITH DESTINATION_TOPIC "prices/{topic.2}/{response.json.zone}"
        WITH PAYLOAD '{"price": {response.json.price}, "from": "{value.json.name|unknown}", "status": {response.status},
            "id": {response.header.X-Id}, "all": {response.json}, "raw": {response.body}}'
    """
    with Target(answering(answer)) as target, hosting(route(target.port, settings)) as host:
        client = host.client("prices/#")
        client.publish("in/a", b"no JSON")
        topic, payload = client.message()
    assert topic == "prices/a/DE"
    whole = {"price": 17.5, "zone": "DE"}
    expected = {"price": 17.5, "from": "unknown", "status": 200, "id": "7, 8", "all": whole, "raw": whole}
    assert json.loads(payload) == expected
    assert b'"price": 17.50' in payload


@pytest.mark.parametrize("hosting", DOORS)
def test_the_body_alone_is_published_byte_for_byte(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (200, b"\x00\xff")
    settings = 'WITH DESTINATION_TOPIC "out/{response.status}" WITH PAYLOAD "{response.body}"'
    with hosting(route(target.port, settings)) as host:
        client = host.client("out/#")
        client.publish("in/a", b"")
        assert client.message() == ("out/200", b"\x00\xff")


@pytest.mark.parametrize("hosting", DOORS)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b'{"b": 1}', "the response has no field a", id="no such field"),
        pytest.param(b"<html>", "the response is not JSON", id="not JSON"),
        pytest.param(b"\xff", "the response is not UTF-8 text", id="not text"),
    ],
)
def test_a_value_that_the_response_lacks_is_a_failure_with_its_status_and_the_call_is_not_repeated(
    target: Recorder, hosting: Hosting, body: bytes, reason: str
) -> None:
    target.answer = lambda _: (200, body)
    settings = 'WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "wrong" WITH PAYLOAD "{response.json.a}"'
    with hosting(route(target.port, settings)) as host:
        client = host.client("out", "wrong")
        client.publish("in/a", b"")
        topic, payload = client.message()
    failure = json.loads(payload)
    assert (topic, failure["status"], failure["error"]["code"]) == ("wrong", 200, "placeholder_unresolved")
    assert reason in failure["error"]["message"]
    assert "{response.json.a|text}" in failure["error"]["hint"]
    assert target.arrived.qsize() == 1


@pytest.mark.parametrize("hosting", DOORS)
def test_a_failure_goes_to_the_topic_that_the_response_names_where_there_is_one(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (404, b'{"zone": "DE"}')
    with hosting(route(target.port, 'WITH DESTINATION_TOPIC "out/{response.json.zone|none}"')) as host:
        client = host.client("out/#")
        client.publish("in/a", b"")
        topic, payload = client.message()
        assert (topic, json.loads(payload)["status"]) == ("out/DE", 404)
        target.close()
        client.publish("in/a", b"")
        topic, payload = client.message(20)
        assert (topic, json.loads(payload)["error"]["code"]) == ("out/none", "connection_failed")
