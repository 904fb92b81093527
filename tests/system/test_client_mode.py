"""Client mode in a real broker: MQTT in, HTTP out, MQTT back."""

import json

import pytest

from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, echo, recording
from tests.support.waiting import eventually

processes = pytest.mark.parametrize("processes", [pytest.param(0, id="thread"), pytest.param(1, id="process")])


def route(target: Recorder, event: str, name: str = "R") -> str:
    return f"""
        DEFINE ROUTE {name} WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}/base" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
            ADD EVENT E {event}
    """


POST = """
    WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/e" WITH BODY "{payload}" WITH DESTINATION_TOPIC "out"
"""


@processes
@pytest.mark.parametrize("payload", [b"hello", bytes(range(256)), b""], ids=["text", "binary", "empty"])
def test_the_response_to_a_message_is_published_byte_for_byte(target: Recorder, processes: int, payload: bytes) -> None:
    with hosting(route(target, POST), processes=processes) as host:
        client = host.client("out")
        client.publish("in/x", payload)
        assert client.message() == ("out", payload)
        assert target.request().path == "/base/e"


def test_a_server_that_is_gone_gives_failures_and_works_again_when_it_is_back(target: Recorder) -> None:
    with hosting(route(target, POST)) as host:
        client = host.client("out")
        target.close()
        client.publish("in/x", b"1")
        assert json.loads(client.message()[1])["error"]["code"] == "connection_failed"
        with recording(target.port):
            client.publish("in/x", b"2")
            assert client.message() == ("out", b"2")


def test_all_events_that_match_a_message_run_and_other_topics_trigger_nothing(target: Recorder) -> None:
    one = route(target, POST, name="One")
    two = route(target, POST.replace('"out"', '"out2"').replace("in/#", "in/+"), name="Two")
    with hosting(one + two) as host:
        client = host.client("out", "out2")
        client.publish("elsewhere", b"-")
        client.publish("in/x", b"1")
        assert sorted(client.messages(2)) == [("out", b"1"), ("out2", b"1")]
    assert target.arrived.qsize() == 2


def test_routes_chain_and_a_circle_ends_after_eight_hops(target: Recorder) -> None:
    circle = POST.replace('"in/#"', '"ring"').replace('"out"', '"ring"')
    with hosting(route(target, circle)) as host:
        client = host.client("ring")
        client.publish("ring", b"x")
        assert client.messages(9) == [("ring", b"x")] * 9  # the one sent and eight results
        client.publish("ring", b"y")
        assert client.messages(9) == [("ring", b"y")] * 9
        eventually(lambda: host.program.status("R")["messages"]["refused"] == 2)
        status = host.program.status("R")
    assert status["messages"]["succeeded"] == 16
    assert "8 routes" in status["last_error"]["message"]


def test_retained_messages_delivered_on_subscription_do_not_trigger(target: Recorder) -> None:
    with hosting(route(target, POST)) as host:
        client = host.client("out")
        client.publish("in/x", b"kept", retain=True)
        assert client.message() == ("out", b"kept")
        other = host.client("in/x")
        assert other.message() == ("in/x", b"kept")
        client.publish("in/y", b"next")
        assert client.message() == ("out", b"next")
    assert target.arrived.qsize() == 2


def test_a_full_route_refuses_the_new_message_and_answers_the_old_ones(target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    routes = route(target, POST) + " ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '2'"
    with hosting(routes, workers=1) as host:
        client = host.client("out")
        for payload in (b"1", b"2", b"3"):
            client.publish("in/x", payload)
        assert json.loads(client.message()[1])["error"]["code"] == "overloaded"
        gate.open.set()
        assert client.messages(2) == [("out", b"1"), ("out", b"2")]


def test_a_realtime_route_refuses_when_no_worker_is_free(target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    routes = route(target, POST) + ' ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "realtime"'
    with hosting(routes, workers=2) as host:
        client = host.client("out")
        for payload in (b"1", b"2", b"3"):
            client.publish("in/x", payload)
        assert "realtime" in json.loads(client.message()[1])["error"]["message"]
        gate.open.set()
        assert sorted(client.messages(2)) == [("out", b"1"), ("out", b"2")]
