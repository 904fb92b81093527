"""Which headers and user properties are taken for a trace context."""

import pytest

from amqtt_rest_bridge.engine.requests import trace_of

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "rojo=00f067aa0ba902b7,fw529a3039@dt=FfAaBb 09"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(PARENT, id="the specification's"),
        pytest.param(f" {PARENT}\t", id="with space around it"),
        pytest.param(PARENT.replace("00-", "cc-", 1) + "-what.comes.later", id="a later version"),
        pytest.param(PARENT.replace("00-", "cc-", 1), id="a later version that says no more"),
    ],
)
def test_a_traceparent_is_taken(value: str) -> None:
    assert trace_of([("traceparent", value)]) == (("traceparent", value.strip()),)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param(PARENT.upper(), id="upper case"),
        pytest.param(PARENT[:-1], id="too short"),
        pytest.param(f"{PARENT}-more", id="too long for its version"),
        pytest.param(f"{PARENT}.", id="no dash"),
        pytest.param(PARENT.replace("00-", "ff-", 1), id="version ff"),
        pytest.param(PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), id="no trace"),
        pytest.param(PARENT.replace("00f067aa0ba902b7", "0" * 16), id="no parent"),
        pytest.param(f"{PARENT}\r\nX-Injected: 1", id="a line break"),
        pytest.param(f"{PARENT}\n", id="a line break at the end"),
        pytest.param(PARENT.replace("00-", "cc-", 1) + "-\u00e9", id="not ASCII"),
    ],
)
def test_a_malformed_traceparent_is_dropped_with_its_tracestate_and_not_the_baggage(value: str) -> None:
    pairs = [("traceparent", value), ("tracestate", STATE), ("baggage", "a=b")]
    assert trace_of(pairs) == (("baggage", "a=b"),)


def test_two_traceparents_are_none() -> None:
    assert trace_of([("traceparent", PARENT), ("Traceparent", PARENT)]) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("tracestate", STATE, id="tracestate"),
        pytest.param("tracestate", "a=1,,b=2", id="an empty member of tracestate"),
        pytest.param("tracestate", ",".join(f"k{number}=v" for number in range(32)), id="32 members"),
        pytest.param("baggage", "userId=alice,serverNode=DF%2028,isProduction=false", id="baggage"),
        pytest.param("baggage", "key1=value1;property1;property2, key2 = value2, k=;p=v", id="properties in baggage"),
    ],
)
def test_state_and_baggage_are_taken(name: str, value: str) -> None:
    assert trace_of([("traceparent", PARENT), (name, value)]) == (("traceparent", PARENT), (name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("tracestate", "", id="no member"),
        pytest.param("tracestate", "a", id="no value"),
        pytest.param("tracestate", "A=1", id="upper case"),
        pytest.param("tracestate", "a=1,a=2", id="a key twice"),
        pytest.param("tracestate", "a=1=2", id="two equals signs"),
        pytest.param("tracestate", "a=\r\nX: 1", id="a line break"),
        pytest.param("tracestate", ",".join(f"k{number}=v" for number in range(33)), id="33 members"),
        pytest.param("baggage", "a", id="baggage without a value"),
        pytest.param("baggage", 'a="b"', id="quotes"),
        pytest.param("baggage", "a b=c", id="a space in a name"),
        pytest.param("baggage", "a=b;;c", id="an empty property"),
        pytest.param("baggage", "a=b\r\nX-Injected: 1", id="a line break in baggage"),
        pytest.param("baggage", "a=\u00fc", id="baggage that is not ASCII"),
        pytest.param("baggage", "a=" + "b" * 8192, id="too long"),
        pytest.param("baggage", ",".join(["a=b"] * 181), id="181 members"),
    ],
)
def test_malformed_state_and_baggage_are_dropped(name: str, value: str) -> None:
    assert trace_of([("traceparent", PARENT), (name, value)]) == (("traceparent", PARENT),)


def test_lists_that_are_sent_in_parts_are_joined() -> None:
    pairs = [("traceparent", PARENT), ("tracestate", "a=1"), ("other", "x"), ("TraceState", "b=2")]
    assert trace_of(pairs) == (("traceparent", PARENT), ("tracestate", "a=1,b=2"))


def test_other_headers_are_left_out() -> None:
    assert trace_of([("content-type", "text/plain"), ("traceparent", PARENT)]) == (("traceparent", PARENT),)
    assert trace_of([("x-traceparent", PARENT)]) == ()
