"""Every setting of the language reaches the model with its type."""

import re
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import (
    BreakerRule,
    LoadResult,
    Method,
    OverloadPolicy,
    ResponseFormat,
    Route,
    RouteConfig,
    Signature,
    SignatureScheme,
)
from amqtt_rest_bridge.lot.parameters import PARAMETERS, Applies, BlockKind, Kind, Parameter, Rule
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from amqtt_rest_bridge.lot.schemas import read as read_schema
from amqtt_rest_bridge.lot.sources import Source
from tests.support.route_text import CASES, load_text

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


def load_route(
    config: dict[str, str], client: dict[str, str], server: dict[str, str], route_config: dict[str, str]
) -> Route:
    text = "DEFINE ROUTE R WITH TYPE REST_API\n"
    blocks = {"REST_API_CONFIG": config, "ROUTE_CONFIG": route_config, "EVENT C": client, "EVENT S": server}
    for name, settings in blocks.items():
        text += f"ADD {name}\n" + "".join(f"WITH {key} {value}\n" for key, value in settings.items())
    loaded = load_text(text)
    assert not loaded.has_errors, loaded.faults
    return loaded.routes[0]


CONFIG_ROWS = [
    ("BASE_ADDRESS", '"https://other/v1/"', "https://other/v1"),
    ("ENABLE_CLIENT", '"TRUE"', True),
    ("REQUEST_TIMEOUT", "'7'", 7),
    ("DEFAULT_CONTENT_TYPE", '"text/plain"', "text/plain"),
    ("ENABLE_SERVER", "true", True),
    ("SERVER_PORT", "9", 9),
    ("USE_SSL", '"false"', False),
    ("IGNORE_CERT_ERRORS", '"true"', True),
    ("ENABLE_CORS", '"true"', True),
    ("CORS_ORIGINS", '" https://A:443 ,http://b:8000,*, null"', ("https://a", "http://b:8000", "*", "null")),
    ("AUTHORIZATION", '"Bearer x"', "Bearer x"),
    ("CA_FILE", f'"{CASES}/files/ca.pem"', f"{CASES}/files/ca.pem"),
    ("CLIENT_CERT_FILE", f'"{CASES}/files/client.pem"', f"{CASES}/files/client.pem"),
    ("RETRIES", "'0'", 0),
    ("SERVER_TOKEN", '"one, two"', ("one", "two")),
]
TOGETHER = {"USERNAME": "u", "PASSWORD": "p", "SERVER_USERNAME": "su", "SERVER_PASSWORD": "sp"}
TOGETHER |= {"SERVER_TOKEN_HEADER": "X-API-Key", "AUTH_SCHEME": "digest"}
OAUTH2 = {"OAUTH2_TOKEN_URL": "https://id/token", "OAUTH2_CLIENT_ID": "i", "OAUTH2_CLIENT_SECRET": "s"}
OAUTH2 |= {"OAUTH2_SCOPE": "a b", "OAUTH2_AUDIENCE": "c"}
SCHEMA = read_schema(f"{CASES}/files/order.schema.json", set())
FILES = {"CLIENT_CERT_FILE": f"{CASES}/files/client.pem", "CLIENT_KEY_FILE": f"{CASES}/files/client.key"}


@pytest.mark.parametrize(("name", "written", "value"), CONFIG_ROWS)
def test_setting_of_config_reaches_the_model(name: str, written: str, value: object) -> None:
    route = load_route(CONFIG | {name: written}, CLIENT_EVENT, SERVER_EVENT, {})
    assert getattr(route.config, name.lower()) == value


def test_settings_of_config_that_go_together_reach_the_model() -> None:
    written = {name: f'"{value}"' for name, value in (TOGETHER | FILES).items()}
    config = load_route(CONFIG | written | {"SERVER_TOKEN": '"t"'}, CLIENT_EVENT, SERVER_EVENT, {}).config
    assert {name: getattr(config, name.lower()) for name in TOGETHER | FILES} == TOGETHER | FILES


def test_settings_of_oauth2_reach_the_model() -> None:
    written = {name: f'"{value}"' for name, value in OAUTH2.items()}
    config = load_route(CONFIG | written, CLIENT_EVENT, SERVER_EVENT, {}).config
    assert {name: getattr(config, name.lower()) for name in OAUTH2} == OAUTH2


def test_every_setting_of_config_has_a_row_here() -> None:
    shown = {name for name, *_ in CONFIG_ROWS} | TOGETHER.keys() | FILES.keys() | OAUTH2.keys()
    assert shown == PARAMETERS[BlockKind.CONFIG].keys()


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ({"SOURCE_TOPIC": '"a/#"'}, "source_topic", "a/#"),
        ({"DESTINATION_TOPIC": '"d/{topic}"'}, "destination_topic", parse("d/{topic}", Place.TOPIC, Mode.CLIENT)),
        ({"METHOD": "patch"}, "method", Method.PATCH),
        ({"ENDPOINT": '"/{payload}"'}, "endpoint", parse("/{payload}", Place.ENDPOINT, Mode.CLIENT)),
        ({"BODY": "'[{value.json.a}]'"}, "body", parse("[{value.json.a}]", Place.JSON, Mode.CLIENT)),
        (
            {"HEADERS": "\nADD X-A '{topic}'\nADD X-B b"},
            "headers",
            (("X-A", parse("{topic}", Place.HEADER, Mode.CLIENT)), ("X-B", parse("b", Place.HEADER, Mode.CLIENT))),
        ),
        ({"RESPONSE_FORMAT": '"envelope"'}, "response_format", ResponseFormat.ENVELOPE),
        ({"RETAIN": '"true"'}, "retain", True),
        ({"QOS": '"2"'}, "qos", 2),
        ({"ERROR_TOPIC": '"e"'}, "error_topic", "e"),
        ({"ORDERED": '"true"'}, "ordered", True),
        ({"EVERY": '"15m"'}, "every", 900),
        ({"DEDUPE_KEY": '"{value.json.id}"'}, "dedupe_key", parse("{value.json.id}", Place.TEXT, Mode.CLIENT)),
        ({"DEDUPE_KEY": '"{payload}"', "DEDUPE_FOR": '"1d"'}, "dedupe_for", 86_400),
        ({"ON_CHANGE": '"{topic.1}"'}, "on_change", parse("{topic.1}", Place.TEXT, Mode.CLIENT)),
        ({"ON_CHANGE": '"{payload}"', "ON_CHANGE_FOR": "1 HOUR"}, "on_change_for", 3600),
        ({"FAILURE_PAYLOAD": '"true"'}, "failure_payload", True),
        ({"BATCH_SIZE": "5", "BODY": "'{batch}'"}, "batch_size", 5),
        ({"BATCH_SIZE": "5", "BODY": "'{batch}'", "BATCH_SECONDS": "7"}, "batch_seconds", 7),
        ({"BATCH_SIZE": "5", "BODY": "'{batch}'", "BATCH_SPLIT": "true"}, "batch_split", True),
        (
            {"BATCH_SIZE": "5", "BODY": "'{batch}'", "BATCH_ITEM": "'[{topic}]'"},
            "batch_item",
            parse("[{topic}]", Place.JSON, Mode.CLIENT),
        ),
        ({"BATCH_SIZE": "5", "BODY": "'a{batch.lines}'"}, "body", parse("a{batch.lines}", Place.JSON, Mode.BATCH)),
        ({"RETRY_ON": '"500, 502-504"'}, "retry_on", (500, 502, 503, 504)),
        ({"PAYLOAD": "'{response.json.a}'"}, "payload", parse("{response.json.a}", Place.JSON, Mode.RESULT)),
        (
            {"PAYLOAD": "'{response.json.a}'", "RESPONSE_CONTENT_TYPE": '"text/plain"'},
            "payload",
            parse("{response.json.a}", Place.TEXT, Mode.RESULT),
        ),
        ({"SIGNATURE_SECRET": '"s"'}, "signature", Signature("s")),
        ({"SCHEMA_FILE": f'"{SCHEMA.path}"'}, "schema_file", SCHEMA),
        ({"SIGNATURE_SECRET": '"s"', "SIGNATURE_HEADER": '"X-S"'}, "signature", Signature("s", "X-S")),
    ],
)
def test_setting_of_a_client_event_reaches_the_model(written: dict[str, str], field: str, value: object) -> None:
    route = load_route(CONFIG, CLIENT_EVENT | written, SERVER_EVENT, {})
    assert getattr(route.client_events[0], field) == value


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ({"DESTINATION_TOPIC": '"d/{path.id}"'}, "destination_topic", parse("d/{path.id}", Place.TOPIC, Mode.SERVER)),
        ({"METHOD": "delete"}, "method", Method.DELETE),
        ({"ENDPOINT": '"/y"'}, "endpoint", "/y"),
        ({"PAYLOAD": "'[{body.json.a}]'"}, "payload", parse("[{body.json.a}]", Place.JSON, Mode.SERVER)),
        ({"REPLY_TOPIC": '"r/{request_id}"'}, "reply_topic", parse("r/{request_id}", Place.TOPIC, Mode.SERVER)),
        ({"RETAIN": '"true"'}, "retain", True),
        ({"QOS": '"2"'}, "qos", 2),
        ({"SIGNATURE_SECRET": '"s"', "SIGNATURE_HEADER": '"X-S"'}, "signature", Signature("s", "X-S")),
        (
            {"SIGNATURE_SECRET": '"s"', "SIGNATURE_SCHEME": "slack"},
            "signature",
            Signature("s", scheme=SignatureScheme.SLACK),
        ),
        ({"RESPONSE": '"{path.id}"'}, "response", parse("{path.id}", Place.JSON, Mode.SERVER)),
        ({"RESPONSE_STATUS": "'202'"}, "response_status", 202),
        ({"DEDUPE_KEY": '"{header.id}"'}, "dedupe_key", parse("{header.id}", Place.TEXT, Mode.SERVER)),
        ({"DEDUPE_KEY": '"{header.id}"', "DEDUPE_FOR": '"1d"'}, "dedupe_for", 86_400),
        ({"SCHEMA_FILE": f'"{SCHEMA.path}"'}, "schema_file", SCHEMA),
        (
            {"RESPONSE": '"{path.id}"', "RESPONSE_CONTENT_TYPE": '"text/plain"'},
            "response_content_type",
            "text/plain",
        ),
    ],
)
def test_setting_of_a_server_event_reaches_the_model(written: dict[str, str], field: str, value: object) -> None:
    route = load_route(CONFIG, CLIENT_EVENT, SERVER_EVENT | written, {})
    assert getattr(route.server_events[0], field) == value


def test_source_topic_makes_a_get_of_server_mode_read() -> None:
    text = """DEFINE ROUTE R WITH TYPE REST_API ADD REST_API_CONFIG WITH ENABLE_SERVER true
    ADD EVENT E WITH METHOD GET WITH ENDPOINT "/x/{x}" WITH SOURCE_TOPIC "a/{path.x}/+" WITH STREAM "true" """
    event = load_text(text).routes[0].server_events[0]
    assert (event.source_topic, event.read_filter, event.destination_topic) == ("a/{path.x}/+", "a/+/+", None)
    assert event.stream


def test_settings_of_route_config_reach_the_model() -> None:
    written = {
        "OVERLOAD_CAPACITY": "'5'", "OVERLOAD_BYTES": "'3 KiB'", "OVERLOAD_POLICY": "REALTIME",
        "OVERLOAD_TIMEOUT": "250", "RATE_LIMIT": "5/s", "BREAKER": "'7 per 2m'",
    }  # fmt: skip
    route = load_route(CONFIG, CLIENT_EVENT, SERVER_EVENT, written)
    assert route.route_config == RouteConfig(5, OverloadPolicy.REALTIME, 250, 0.2, 3072, BreakerRule(7, 120))


ALL = [pytest.param(row, id=f"{kind}-{row.name}") for kind, block in PARAMETERS.items() for row in block.values()]


@pytest.mark.parametrize("row", ALL)
def test_every_row_is_documented(row: Parameter) -> None:
    assert row.meaning
    assert row.allowed
    assert (row.kind in (Kind.INTEGER, Kind.SIZE)) == (row.high > 0)
    assert (row.kind is Kind.CHOICE) == bool(row.choices)
    assert row.applies in Applies


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
