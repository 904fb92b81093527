"""The table of settings: each row is documented, loads with its example, and keeps its rules."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.forms import FormError, convert
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, Applies, BlockKind, Kind, Parameter, Rule
from amqtt_rest_bridge.lot.sources import Source
from tests.support.route_text import CASES

PLAIN = {
    *("BASE_ADDRESS", "ENABLE_CLIENT", "REQUEST_TIMEOUT", "DEFAULT_CONTENT_TYPE", "ENABLE_SERVER", "SERVER_PORT"),
    *("USERNAME", "PASSWORD", "USE_SSL", "IGNORE_CERT_ERRORS", "ENABLE_CORS", "CORS_ORIGINS"),
    *("SOURCE_TOPIC", "DESTINATION_TOPIC", "METHOD", "ENDPOINT", "BODY", "HEADERS"),
}
"""The settings of the specified language; all others are extensions of it."""
CONFIG = {"BASE_ADDRESS": '"http://h"', "ENABLE_CLIENT": '"true"', "ENABLE_SERVER": '"true"'}
CLIENT_EVENT = {"SOURCE_TOPIC": '"in"', "METHOD": '"POST"', "ENDPOINT": '"/x"', "DESTINATION_TOPIC": '"out"'}
READ_EVENT = {"METHOD": '"GET"', "ENDPOINT": '"/x"', "SOURCE_TOPIC": '"plant/+/alert"'}
SERVER_EVENT = {"METHOD": '"POST"', "ENDPOINT": '"/x/{id}"', "DESTINATION_TOPIC": '"d"'}


@pytest.mark.parametrize("kind", BlockKind)
def test_every_setting_reaches_the_model_in_a_case_of_the_language(kind: BlockKind) -> None:
    """In each mode that it applies to, with another value than its default."""
    by_kind: dict[BlockKind, dict[str, tuple[Applies, ...]]] = {
        BlockKind.CONFIG: {"config": tuple(Applies)},
        BlockKind.ROUTE_CONFIG: {"route_config": tuple(Applies)},
        BlockKind.EVENT: {
            "client_events": (Applies.CLIENT, Applies.BOTH), "server_events": (Applies.SERVER, Applies.BOTH),
        },
    }  # fmt: skip
    routes = [
        route for path in (CASES / "valid").glob("*.json") for route in json.loads(path.read_text("utf-8"))["routes"]
    ]
    for member, modes in by_kind[kind].items():
        found: set[str] = set()
        for block in (block for route in routes for block in as_list(route.get(member, []))):
            found |= block.keys() | {f"signature_{name}" for name in block.get("signature", ())}
        if member == "client_events":
            found.add("response_content_type")  # which only decides how PAYLOAD is escaped
        assert {name for name, row in PARAMETERS[kind].items() if row.applies in modes} <= {*map(str.upper, found)}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


ALL = [pytest.param(row, id=f"{kind}-{row.name}") for kind, block in PARAMETERS.items() for row in block.values()]


@pytest.mark.parametrize("row", ALL)
def test_every_row_is_documented(row: Parameter) -> None:
    assert row.meaning
    assert row.allowed
    assert (row.kind in (Kind.INTEGER, Kind.SIZE)) == (row.high > 0)
    assert (row.kind is Kind.CHOICE) == bool(row.choices)
    assert row.applies in Applies


@pytest.mark.parametrize(
    ("setting", "text", "hint"),
    [
        pytest.param("REQUEST_TIMEOUT", "2000 ms", "write 2", id="milliseconds"),
        pytest.param("REQUEST_TIMEOUT", "2m", "write 120", id="minutes"),
        pytest.param("REQUEST_TIMEOUT", "2.5", "write 3", id="part of a second"),
        pytest.param("REQUEST_TIMEOUT", "500ms", "the least is 1 second", id="less than a second"),
        pytest.param("BATCH_SECONDS", "0.5", "the least is 1 second", id="without a unit"),
        pytest.param("BATCH_SECONDS", "2 HOURS", "the most is 3600 seconds", id="too long"),
        pytest.param("REQUEST_TIMEOUT", "5000", "write 5 if milliseconds are meant", id="probably milliseconds"),
        pytest.param("REQUEST_TIMEOUT", "ten", None, id="no time"),
        pytest.param("OVERLOAD_TIMEOUT", "2s", "write 2000", id="seconds"),
        pytest.param("OVERLOAD_TIMEOUT", "1.5 Seconds", "write 1500", id="part of a second in milliseconds"),
    ],
)
def test_a_time_in_a_wrong_form_is_converted_to_the_unit_of_its_setting(
    setting: str, text: str, hint: str | None
) -> None:
    row = next(rows[setting] for rows in PARAMETERS.values() if setting in rows)
    with pytest.raises(FormError) as refused:
        convert(row, text, text)
    assert refused.value.message == (f'is in {row.unit}, a whole number from {row.low} to {row.high}, not "{text}"')
    assert refused.value.hint == hint


def test_no_hint_has_a_number_from_outside_the_file() -> None:
    for row in (row for rows in PARAMETERS.values() for row in rows.values() if row.kind is Kind.INTEGER):
        for text in ("987654321 ms", "98765k", "9876MB"):
            with pytest.raises(FormError) as refused:
                convert(row, text, "{secret.x}")
            assert refused.value.hint is None


def test_every_integer_that_is_a_time_has_its_unit() -> None:
    times = {row.name for _, row in EXAMPLES if row.kind is Kind.INTEGER and re.search("TIME|SECONDS", row.name)}
    assert times == {row.name for _, row in EXAMPLES if row.unit}


def test_the_portable_settings_are_those_of_the_specified_language() -> None:
    assert {name for block in PARAMETERS.values() for name, row in block.items() if row.portable} == PLAIN


EXAMPLES = [(kind, row) for kind, rows in PARAMETERS.items() for row in rows.values()]


def load_example(
    kind: BlockKind, row: Parameter, beside: dict[str, str], folder: Path, *, without: str = ""
) -> LoadResult:
    """Load a route whose setting has its example, beside other settings of its block."""
    for name in re.findall(r'GET SECRET "([^"]+)"', " ".join(one.example for _, one in EXAMPLES)):
        (folder / name).write_text("s3cret-s3cret")
    client = is_for_client(row)
    config = {"BASE_ADDRESS": '"https://h"'} if client else {}
    config["ENABLE_CLIENT" if client else "ENABLE_SERVER"] = '"true"'
    event = CLIENT_EVENT | {"SOURCE_TOPIC": '"plant/+/alert"'} if client else SERVER_EVENT
    event = READ_EVENT if row.name == "STREAM" else event
    lines = {BlockKind.CONFIG: config, BlockKind.ROUTE_CONFIG: {}, BlockKind.EVENT: event}
    lines[kind] = lines[kind] | beside | {row.name: row.example}
    if "BATCH_SIZE" in lines[kind]:
        lines[kind]["BODY"] = "'{batch}'"
    text = "DEFINE ROUTE R WITH TYPE REST_API\n"
    for block, settings in lines.items():
        text += f"ADD {block}{' E' if block is BlockKind.EVENT else ''}\n"
        text += "".join(f"WITH {name} {value}\n" for name, value in settings.items() if name != without)
    return load([Source("example.lot", text)], Environment({}, folder))


def is_for_client(row: Parameter) -> bool:
    return row.applies is not Applies.SERVER and row.name != "ENABLE_SERVER"


def counted(row: Parameter, rules: tuple[Rule, ...]) -> list[Rule]:
    """Return the rules that count in the route of an example."""
    mode = Applies.CLIENT if is_for_client(row) else Applies.SERVER
    return [rule for rule in rules if rule.applies in (Applies.BOTH, mode)]


def required(kind: BlockKind, row: Parameter) -> dict[str, str]:
    """Return what a setting requires, and what that requires."""
    found: dict[str, str] = {}
    rows = [row]
    for one in rows:
        lacking = [rule for rule in counted(one, one.requires) if rule.name not in found]
        found |= {rule.name: written(kind, rule) for rule in lacking}
        rows += [PARAMETERS[kind][rule.name] for rule in lacking if not rule.values]
    return found


def written(kind: BlockKind, rule: Rule) -> str:
    return f'"{rule.values[0]}"' if rule.values else PARAMETERS[kind][rule.name].example


@pytest.mark.parametrize(("kind", "row"), EXAMPLES, ids=lambda value: getattr(value, "name", value))
def test_the_example_of_each_setting_loads(
    kind: BlockKind, row: Parameter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES / "files")  # where the PEM files of the examples are
    loaded = load_example(kind, row, required(kind, row), tmp_path)
    assert [fault.message for fault in loaded.faults if not row.name.startswith("IGNORE")] == []
    assert not loaded.has_errors
    assert "\n" not in row.example


RULES = [
    pytest.param(kind, row, rule, verb, id=f"{row.name} {verb} {rule.name}")
    for kind, row in EXAMPLES
    for verb, rules in (("requires", row.requires), ("excludes", row.excludes))
    for rule in counted(row, rules)
]


@pytest.mark.parametrize(("kind", "row", "rule", "verb"), RULES)
def test_a_setting_without_what_it_requires_or_beside_what_it_excludes_is_a_fault(
    kind: BlockKind, row: Parameter, rule: Rule, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row.name == rule.name:  # one of several that require each other
        return
    monkeypatch.chdir(CASES / "files")
    beside = required(kind, row)
    if verb == "excludes":
        beside |= {rule.name: written(kind, rule)}
    faults = load_example(kind, row, beside, tmp_path, without=rule.name if verb == "requires" else "").faults
    codes = {one.code for one in faults if rule.name in one.message}
    is_default = PARAMETERS[kind][rule.name].default in rule.values and verb == "requires"
    strict = FaultCode.REQUIRES if verb == "requires" else FaultCode.EXCLUDES
    assert (codes == set()) if is_default else ((strict if rule.strict else FaultCode.NO_EFFECT) in codes)
    assert rule.hint is None or is_default or rule.hint in {one.hint for one in faults}


def test_every_rule_names_a_setting_of_its_block_and_values_that_it_has() -> None:
    for kind, row in EXAMPLES:
        for rule in (*row.requires, *row.excludes):
            other = PARAMETERS[kind][rule.name]
            assert set(rule.values) <= {*other.choices} or other.kind in (Kind.BOOLEAN, Kind.INTEGER), (row.name, rule)


def test_a_text_may_hold_placeholders_exactly_when_its_row_has_their_modes() -> None:
    filled = (Kind.TEMPLATE, Kind.TOPIC_TEMPLATE, Kind.CONDITION, Kind.HEADERS)
    for _, row in EXAMPLES:
        assert bool(row.placeholders) == (row.kind in filled), row.name


def test_the_notes_of_a_setting_are_what_its_row_holds() -> None:
    assert PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].notes == (
        "no effect without SIGNATURE_SECRET",
        'no effect without SIGNATURE_SCHEME "hmac" (server)',
    )
    assert PARAMETERS[BlockKind.CONFIG]["AUTHORIZATION"].notes == ("excludes USERNAME (client)",)
    assert PARAMETERS[BlockKind.EVENT]["RESPONSE_STATUS"].notes == ("no effect with REPLY_TOPIC (server)",)
    assert PARAMETERS[BlockKind.EVENT]["RESPONSE_FORMAT"].notes[1].startswith("envelope: ")
