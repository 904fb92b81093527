"""Which headers and user properties are taken for a trace context."""

import pytest

from amqtt_rest_bridge.engine.requests import trace_of

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "rojo=00f067aa0ba902b7,fw529a3039@dt=FfAaBb 09"


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        pytest.param(PARENT, True, id="the specification's"),
        pytest.param(f" {PARENT}\t", True, id="with space around it"),
        pytest.param(PARENT.replace("00-", "cc-", 1) + "-what.comes.later", True, id="a later version"),
        pytest.param(PARENT.replace("00-", "cc-", 1), True, id="a later version that says no more"),
        pytest.param("", False, id="empty"),
        pytest.param(PARENT.upper(), False, id="upper case"),
        pytest.param(PARENT[:-1], False, id="too short"),
        pytest.param(f"{PARENT}-more", False, id="too long for its version"),
        pytest.param(f"{PARENT}.", False, id="no dash"),
        pytest.param(PARENT.replace("00-", "ff-", 1), False, id="version ff"),
        pytest.param(PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), False, id="no trace"),
        pytest.param(PARENT.replace("00f067aa0ba902b7", "0" * 16), False, id="no parent"),
        pytest.param(f"{PARENT}\r\nX-Injected: 1", False, id="a line break"),
        pytest.param(f"{PARENT}\n", False, id="a line break at the end"),
        pytest.param(PARENT.replace("00-", "cc-", 1) + "-\u00e9", False, id="not ASCII"),
    ],
)
def test_a_traceparent_is_taken_or_dropped_with_its_tracestate_and_not_the_baggage(value: str, is_taken: bool) -> None:
    pairs = [("traceparent", value), ("tracestate", STATE), ("baggage", "a=b")]
    trace = (("traceparent", value.strip()), ("tracestate", STATE)) if is_taken else ()
    assert trace_of(pairs) == (*trace, ("baggage", "a=b"))


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        pytest.param("tracestate", STATE, True, id="tracestate"),
        pytest.param("tracestate", "a=1,,b=2", True, id="an empty member of tracestate"),
        pytest.param("tracestate", ",".join(f"k{number}=v" for number in range(32)), True, id="32 members"),
        pytest.param("tracestate", "", False, id="no member"),
        pytest.param("tracestate", "a", False, id="no value"),
        pytest.param("tracestate", "A=1", False, id="upper case"),
        pytest.param("tracestate", "a=1,a=2", False, id="a key twice"),
        pytest.param("tracestate", "a=1=2", False, id="two equals signs"),
        pytest.param("tracestate", "a=\r\nX: 1", False, id="a line break"),
        pytest.param("tracestate", ",".join(f"k{number}=v" for number in range(33)), False, id="33 members"),
        pytest.param("baggage", "userId=alice,serverNode=DF%2028,isProduction=false", True, id="baggage"),
        pytest.param("baggage", "key1=value1;property1;property2, key2 = value2, k=;p=v", True, id="properties"),
        pytest.param("baggage", "a", False, id="baggage without a value"),
        pytest.param("baggage", 'a="b"', False, id="quotes"),
        pytest.param("baggage", "a b=c", False, id="a space in a name"),
        pytest.param("baggage", "a=b;;c", False, id="an empty property"),
        pytest.param("baggage", "a=b\r\nX-Injected: 1", False, id="a line break in baggage"),
        pytest.param("baggage", "a=\u00fc", False, id="baggage that is not ASCII"),
        pytest.param("baggage", "a=" + "b" * 8192, False, id="too long"),
        pytest.param("baggage", ",".join(["a=b"] * 181), False, id="181 members"),
    ],
)
def test_state_and_baggage_are_taken_unless_malformed(name: str, value: str, is_taken: bool) -> None:
    expected = (("traceparent", PARENT), *([(name, value)] if is_taken else []))
    assert trace_of([("traceparent", PARENT), (name, value), ("x-traceparent", PARENT)]) == expected


def test_two_traceparents_are_none_and_lists_that_are_sent_in_parts_are_joined() -> None:
    assert trace_of([("traceparent", PARENT), ("Traceparent", PARENT)]) == ()
    pairs = [("traceparent", PARENT), ("tracestate", "a=1"), ("other", "x"), ("TraceState", "b=2")]
    assert trace_of(pairs) == (("traceparent", PARENT), ("tracestate", "a=1,b=2"))
