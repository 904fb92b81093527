"""WHEN: what is true of which message, what is said of one that is false, and that no message makes it raise."""

import json
import pickle
import time

import pytest
from hypothesis import example
from hypothesis import strategies as st

from amqtt_rest_bridge.lot.masking import NO_SECRETS, Masker
from amqtt_rest_bridge.lot.placeholders.conditions import Condition, is_true, why_false
from amqtt_rest_bridge.lot.placeholders.text import MessageValues
from tests.lot.placeholders.test_properties import JSON_VALUES, TEXTS, TOPICS, for_all
from tests.support.route_text import BASIC, load_text

PAYLOAD = """{"level": 3, "big": 12345678901234567890, "half": 0.5, "text": "pump 7%", "seven": "7", "yes": true,
 "none": null, "list": [1, {"a": 1.0}], "same": [1.0, {"a": 1}], "other": ["1", {"a": 1}], "empty": "", "one": 1}"""


def condition(text: str) -> Condition:
    loaded = load_text(f"{BASIC}WITH WHEN '{text}'\n")
    assert not loaded.has_errors, loaded.faults
    when = loaded.routes[0].client_events[0].when
    assert when is not None
    return when


def holds(text: str, payload: bytes = PAYLOAD.encode(), topic: str = "in") -> bool:
    travelled: Condition = pickle.loads(pickle.dumps(condition(text)))
    return is_true(travelled, MessageValues(payload, 1769860800.5, topic=topic))


@pytest.mark.parametrize(
    "text",
    [
        "{value.json.level} = 3", "{value.json.level} = 3.0", "{value.json.level} != 4", "{value.json.level} >= 3",
        "{value.json.level} > 2.99", "{value.json.half} < 1", "{value.json.half} = 5e-1", "3 <= {value.json.level}",
        "{value.json.big} > 12345678901234567889", "{value.json.big} != 12345678901234567891",
        "{value.json.level} != \"3\"", "{value.json.yes} = true", "{value.json.yes} != 1", "{value.json.one} != true",
        "{value.json.none} = null", "{value.json.text} != null", "{value.json.text} > \"pump\"",
        "{value.json.list} = {value.json.same}", "{value.json.list} != {value.json.other}",
        "{value.json.text} LIKE \"pump%\"", "{value.json.text} LIKE \"%7_\"", "{value.json.text} NOT LIKE \"pump\"",
        "{value.json.text} LIKE \"%\"", "{value.json.empty} LIKE \"%\"", "{value.json.seven} LIKE \"_\"",
        "{value.json.text} LIKE \"p%m%%\"", "{value.json.level} NOT LIKE \"3\"",
        "{value.json.level} IN (1, \"a\", 3)", "{value.json.level} NOT IN (\"3\", null)",
        "EXISTS {value.json.none}", "NOT EXISTS {value.json.missing}", "EXISTS {value.json.list.1.a}",
        "NOT {value.json.missing} = 1", "NOT {value.json.missing} != 1", "{value.json.missing|5} = 5",
        "{value.json.missing|x} = \"x\"", "{value.json.none|5} > 4", "{value.json.level|5} = 3",
        "{topic.1} = \"in\" AND {timestamp.unix} = 1769860800", "{payload} LIKE \"{%\"", "EXISTS {payload}",
        "{value.json.level} = 4 OR {value.json.level} = 3 AND {value.json.half} = 0.5",
        "NOT ({value.json.level} = 4 OR {value.json.half} = 1)", "({value.json.yes} = TRUE) and(3 = 3)",
    ],
)  # fmt: skip
def test_it_is_true(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "{value.json.missing} = null", "{value.json.missing} != 1", "{value.json.missing} < {value.json.level}",
        "{value.json.level} < \"4\"", "{value.json.seven} = 7", "{value.json.seven} < 8", "{value.json.yes} >= 0",
        "{value.json.none} < 1", "{value.json.list} > 0", "{value.json.list} = 1", "{value.json.level} LIKE \"3\"",
        "{value.json.text} LIKE \"pump_\"", "{value.json.text} LIKE \"PUMP%\"", "{value.json.missing} IN (1, null)",
        "{value.json.level} = 3 AND {value.json.level} = 4", "NOT {value.json.level} = 3", "{payload.csv.99} = \"x\"",
    ],
)  # fmt: skip
def test_it_is_false(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize(
    ("text", "payload", "fault"),
    [
        pytest.param("{value.json.c} > 3", '{"c": "hot"}', '{value.json.c} is "hot", not a number', id="type"),
        pytest.param("{value.json.c} > 3", '{"c": null}', "{value.json.c} is null, not a number", id="null"),
        pytest.param(
            "{value.json.c} > 3", "{}", "{value.json.c} is missing (the payload has no field c)", id="missing"
        ),
        pytest.param("3 < {value.json.c}", '{"c": true}', "{value.json.c} is true, not a number", id="right side"),
        pytest.param('{value.json.c} = "on"', '{"c": 1}', "{value.json.c} is 1, not a text", id="equal"),
        pytest.param('{value.json.c} LIKE "a%"', '{"c": [1]}', "{value.json.c} is [1], not a text", id="LIKE"),
        pytest.param(
            '{value.json.c} IN (1, "a")', '{"c": {}}', "{value.json.c} is {}, not a number or a text", id="IN"
        ),
        pytest.param(
            '{value.json.a} = 1 AND {value.json.c} > 3', '{"a": 1, "c": "x"}', '{value.json.c} is "x", not a number',
            id="AND, of which the first test is true",
        ),
        pytest.param(
            '{value.json.b} = 1 OR {value.json.c} > 3', '{"b": "y", "c": "x"}', '{value.json.b} is "y", not a number',
            id="OR, of which no test can be true",
        ),
        pytest.param("{value.json.c} != 3", "{}", "{value.json.c} is missing (the payload has no field c)", id="!="),
        pytest.param("{value.json.a} < {value.json.b}", '{"a":1,"b":"x"}', "{value.json.a} is 1, not a text", id="<"),
        pytest.param("{value.json.c} > 3", '{"c": 2}', None, id="false by its value"),
        pytest.param("{value.json.c|0} > 3", "{}", None, id="default"),
        pytest.param("{value.json.c} = null", '{"c": 2}', None, id="null that is asked for"),
        pytest.param('{value.json.a} = 1 AND {value.json.c} > 3', '{"a": 2}', None, id="AND, false by its first test"),
        pytest.param('{value.json.a} = 1 OR {value.json.c} > 3', '{"a": 2}', None, id="OR, of which one may be true"),
        pytest.param("NOT {value.json.c} > 1", '{"c": 2}', None, id="NOT"),
        pytest.param("EXISTS {value.json.c}", "{}", None, id="EXISTS"),
        pytest.param('{value.json.c} IN (1, 2)', '{"c": 3}', None, id="IN, false"),
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_used_names_the_value_and_one_that_is_false_shows_all(
    text: str, payload: str, fault: str | None
) -> None:
    when = condition(text)
    code, message = why_false(when, MessageValues(payload.encode(), 0.0, topic="in"), NO_SECRETS.value)
    if fault is None:
        assert (code, message.partition(" is false: ")[0]) == ("when_false", f"WHEN {when.source}")
    else:
        assert (code, message) == ("when_unusable", f"WHEN: {fault}")


@pytest.mark.parametrize("payload", ['{"c": "%s"}', '{"c": {"inside": ["%s"]}}', '{"c": "at its end %s"}'])
def test_no_part_of_a_secret_is_in_the_reason_however_long_it_is(payload: str) -> None:
    secret = "".join(f"s3cret-{number}/" for number in range(20))
    (route,) = load_text(f"{BASIC}WITH WHEN '{{value.json.c}} > 3'\n").routes
    when, masker = route.client_events[0].when, Masker([secret])
    assert when is not None
    _, message = why_false(when, MessageValues((payload % secret).encode(), 0.0, topic="in"), masker.value)
    assert "***" in message and "s3cret" not in message


def test_a_header_or_property_that_by_its_name_is_a_credential_is_not_in_the_reason() -> None:
    for name, shown in (("x-api-key", "***"), ("Authorization", "***"), ("unit", '"hush-carried"')):
        values = MessageValues(b"", 0.0, topic="in", user=[(name, "hush-carried")])
        _, message = why_false(condition(f'{{property.{name}}} = "x"'), values, NO_SECRETS.value)
        assert message.endswith(f"is false: {{property.{name}}} is {shown}")


@pytest.mark.parametrize("payload", [b"", b"no JSON", b"\xff", b"[" * 5000, b"3"])
def test_what_is_not_in_the_payload_is_missing(payload: bytes) -> None:
    assert not holds("{value.json.level} = 3 OR {value.json.level} != 3", payload)
    assert holds("NOT EXISTS {value.json.level}", payload)


EVERY_TEST = condition(
    "({value.json.a} < 3 OR {value.json.a} >= 3.5 OR {value.json.a} = {value.json}"
    ' OR {value.json.a} LIKE "%a_%b%" OR {value.json.a} IN (1, null, {payload}) OR {value.json.a.0} = true'
    ' OR {payload.csv.1} > "x"'
    ' OR {value.json.a|1e400} != {value.json.a|[]} OR {topic.1} LIKE "_%") AND NOT EXISTS {value.json.b}'
)


@for_all(st.one_of(JSON_VALUES, TEXTS), TOPICS)
@example(float("1e308"), "a")
@example("\ud83c", "a")
def test_no_payload_makes_a_condition_raise(value: object, topic: str) -> None:
    for payload in (json.dumps({"a": value}), json.dumps(value, ensure_ascii=False), str(value)):
        values = MessageValues(payload.encode("utf-8", "surrogatepass"), 0.0, topic=topic)
        assert is_true(EVERY_TEST, values) or why_false(EVERY_TEST, values, NO_SECRETS.value)


@for_all(st.binary(max_size=40))
@example(b'{"a": ' + b"9" * 6000 + b"}")
@example(b'{"a": 1e99999}')
@example(b'{"a": ' + b"[" * 400 + b"]" * 400 + b"}")
def test_no_bytes_make_a_condition_raise(payload: bytes) -> None:
    values = MessageValues(payload, 0.0, topic="in")
    assert is_true(EVERY_TEST, values) or why_false(EVERY_TEST, values, NO_SECRETS.value)


def test_a_hostile_text_does_not_make_like_slow() -> None:
    text = b'{"a": "' + b"a" * 200_000 + b'"}'
    started = time.process_time()
    assert not holds('{value.json.a} LIKE "%a%a%a%a%a%a%a%b"', text)
    assert time.process_time() - started < 5.0  # with backtracking it would be hours


@pytest.mark.parametrize("count", [1000, pytest.param(3000, marks=pytest.mark.long)])
def test_thousands_of_values_are_one_condition(count: int) -> None:
    numbers = ", ".join(str(number) for number in range(count, 0, -1))
    assert holds(f"{{value.json.level}} IN ({numbers})")
    assert not holds(f"{{value.json.big}} IN ({numbers})")


def test_two_hundred_parentheses_are_read_and_thousands_are_a_fault() -> None:
    assert holds("(" * 20 + "{value.json.level} = 3" + ")" * 20)
    deep = "(" * 5000 + "{value.json.level} = 3" + ")" * 5000
    (fault,) = load_text(f"{BASIC}WITH WHEN '{deep}'\n").faults
    assert "nested too deeply" in fault.message


@pytest.mark.parametrize(
    ("before", "wrong", "right"),
    [
        *(("", "=> 3", ">="), ("", "=< 3", "<="), ("", "== 3", "="), ("", "=== 3", "="), ('= "=>" ', "== 3", "=")),
        *(("", "<> 3", "!="), ("", "!== 3", "!="), ("", "=! 3", "!=")),
        *(("= 1 ", "&& {value.json.b} = 2", "AND"), ("= 1 ", "|| {value.json.b} = 2", "OR")),
    ],
)
def test_an_operator_of_another_language_is_shown_whole_with_the_one_to_write(
    before: str, wrong: str, right: str
) -> None:
    text = f"{BASIC}WITH WHEN '{{value.json.level}} {before}{wrong}'\n"
    (fault,) = load_text(text).faults
    assert (fault.message, fault.hint) == (f"WHEN: {wrong} cannot follow here", f"write {right}")
    line = text.splitlines()[fault.position.line - 1]
    assert line[fault.position.column - 1 :] == f"{wrong}'"
