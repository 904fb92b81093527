"""SCHEMA_FILE: what requests and messages have against a schema, and what is wrong with a schema itself."""

import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.engine.trial import try_request
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.lot.schemas import checks
from amqtt_rest_bridge.lot.sources import Source

ORDER = {
    "type": "object",
    "required": ["id", "items"],
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"qty": {"minimum": 1}}}},
        "kind": {"enum": ["a", "b"]},
    },
    "additionalProperties": False,
}
SERVER = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true"
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "out" WITH SCHEMA_FILE "{}" {}"""
CLIENT = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://host.test" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH ERROR_TOPIC "wrong"
        WITH SCHEMA_FILE "{}" {}"""


def written(folder: Path, schema: object, name: str = "order.schema.json") -> Path:
    path = folder / name
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return path


def loaded(text: str, path: Path, settings: str = "") -> LoadResult:
    return load([Source("t.lot", text.format(path, settings))], Environment({}, Path("/nowhere")))


def fault_of(path: Path) -> str:
    (fault,) = loaded(SERVER, path).faults
    assert fault.position.line == 3
    setting, _, text = fault.message.partition('": ')
    assert setting.startswith('SCHEMA_FILE "')
    return text


class Endpoint:
    """A server event with a schema."""

    def __init__(self, folder: Path, schema: object, settings: str = "") -> None:
        result = loaded(SERVER, written(folder, schema), settings)
        assert not result.has_errors, result.faults
        self._routes = result.routes

    def post(self, body: bytes, query: str = "") -> tuple[int, str]:
        """Return the status of the answer and, of a refusal, what the body has against the schema."""
        tried = try_request(self._routes, Request("id", "POST", f"/?{query}", query, {}, body), now=0.0)
        status = int(tried.response.status[:3])
        assert bool(tried.publications) == (status == 200)
        if status == 200:
            return status, ""
        error = json.loads(tried.response.body)["error"]
        assert error["code"] == "invalid_body"
        return status, error["message"].removeprefix("The body does not match the schema: ")


def test_every_fault_is_named_with_its_pointer_and_without_a_value(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, ORDER)
    body = {"id": "s3cret", "items": [{"qty": 1}, {"qty": 0}], "kind": "c", "a/b~": 1}
    _, faults = endpoint.post(json.dumps(body).encode())
    assert sorted(faults.split("; ")) == [
        "/a~1b~0 is not allowed", "/id is not of type integer", "/items/1/qty is less than 1",
        '/kind is none of ["a", "b"]',
    ]  # fmt: skip
    assert endpoint.post(b"{}") == (400, "(root) lacks id, items")
    assert endpoint.post(b'{"id": 1, "items": [{"qty": 2}], "kind": "a"}') == (200, "")


def test_of_many_faults_twenty_are_named(tmp_path: Path) -> None:
    _, faults = Endpoint(tmp_path, {"items": {"type": "string"}}).post(json.dumps([1] * 30).encode())
    assert faults.split("; ") == [*(f"/{number} is not of type string" for number in range(20)), "and more"]


def test_a_request_without_a_body_is_checked_as_its_parameters_before_its_condition(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, {"required": ["site"]}, "WITH WHEN \"{query.other} = '1'\"")
    assert endpoint.post(b"") == (400, "(root) lacks site")
    assert Endpoint(tmp_path, {"required": ["site"]}).post(b"", "site=7") == (200, "")


@pytest.mark.parametrize(
    ("schema", "body", "fault"),
    [
        ({"type": ["string", "null"]}, 1, "(root) is not of type string or null"),
        ({"const": 1}, 2, "(root) is not 1"),
        ({"not": {}}, 2, "(root) matches the schema of not"),
        ({"anyOf": [{"const": 1}]}, 2, "(root) matches no schema of anyOf"),
        ({"oneOf": [True, True]}, 2, "(root) does not match exactly one schema of oneOf"),
        ({"uniqueItems": True}, [1, 1.0], "(root) holds an item twice"),
        ({"uniqueItems": True}, [{"a": [1]}, {"a": [1]}], "(root) holds an item twice"),
        ({"pattern": "^[a-z]+$"}, "A", "(root) does not match the pattern ^[a-z]+$"),
        ({"patternProperties": {"^n": {"type": "null"}}}, {"nn": 1}, "/nn is not of type null"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"maxLength": 1}}}, "ab", "(root) is longer than 1 characters"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "(root) is longer than 1 characters"),
        (
            {"patternProperties": {r"^\p{L}$": {}}, "unevaluatedProperties": False},
            {"é": 1, "1": 1},
            "(root) has members that the schema does not know",
        ),
        ({"unevaluatedProperties": False}, {"a": 1}, "(root) has members that the schema does not know"),
        ({"prefixItems": [True], "items": False}, [1, 2], "(root) has too many items"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "(root) lacks a member that another one of it needs"),
        ({"properties": {"a": False}}, {"a": 1}, "/a is not allowed"),
        ({"$id": "https://h.test/a", "$ref": "b", "$defs": {"b": {"$id": "b", "const": 1}}}, 2, "(root) is not 1"),
        ({"$id": "order", "$ref": "order#/$defs/a", "$defs": {"a": {"const": 1}}}, 2, "(root) is not 1"),
        (False, 1, "(root) is not allowed"),
    ],
    ids=str,
)
def test_a_keyword_says_what_it_wants(tmp_path: Path, schema: object, body: object, fault: str) -> None:
    assert Endpoint(tmp_path, schema).post(json.dumps(body).encode()) == (400, fault)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{", "expecting property name enclosed in double quotes at line 1, column 2"),
        (b"[NaN]", "NaN is not a number of JSON"),
        (b"\xff", "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"9" * 10_000, "Exceeds the limit (4300 digits) for integer string conversion"),
    ],
    ids=["cut off", "no number", "octets", "deep", "many digits"],
)
def test_what_is_not_json_matches_no_schema(tmp_path: Path, body: bytes, fault: str) -> None:
    assert Endpoint(tmp_path, True).post(body) == (400, f"(root) is not JSON: {fault}")


# Hostile payloads.


LATE, UNKNOWN = "(root) cannot be checked within 0.1 s", "(root) has members that the schema does not know"
TREE = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
NAMES = {"patternProperties": {"(.*)*(.*)*=$": False}}
LONG, MANY_A = json.dumps({"a" * 5000: 1}), json.dumps("a" * 60 + "!")
BRANCHES = '{"a":' * 60 + "1" + "}" * 60
UNMATCHED = "(root) does not match the pattern ^(a|a?)+$"
DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@pytest.mark.parametrize(
    ("schema", "body", "faults"),
    [
        pytest.param({"pattern": "^(a|a?)+$"}, MANY_A, [LATE, UNMATCHED], id="pattern"),
        pytest.param({"pattern": "^(a|a?)+$"} | DIALECT, MANY_A, [LATE, UNMATCHED], id="pattern of a named dialect"),
        pytest.param(NAMES, LONG, [LATE, ""], id="pattern of names"),
        pytest.param(NAMES | {"unevaluatedProperties": False}, LONG, [LATE, UNKNOWN], id="unknown names"),
        pytest.param(TREE, BRANCHES, [LATE], id="branches"),
        pytest.param(TREE | {"unevaluatedProperties": False}, BRANCHES, [LATE], id="unknown members"),
        pytest.param(
            {"uniqueItems": True}, json.dumps([{"a": one} for one in range(15_000)]), [""], id="unique objects"
        ),
        pytest.param({"items": {"$ref": "#"}}, "[" * 900 + "]" * 900, ["(root) is nested too deeply"], id="deep"),
    ],
)
def test_a_hostile_payload_has_a_bounded_time(
    tmp_path: Path, schema: object, body: str, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MOST_SECONDS", 0.1)
    endpoint = Endpoint(tmp_path, schema)
    before = time.thread_time()
    _, fault = endpoint.post(body.encode())
    assert time.thread_time() - before < 2
    assert fault.rpartition("; ")[2] in faults


# Schemas that cannot be used.


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ('{"type": }', "it is not JSON: expecting value at line 1, column 10"),
        ({"type": "strin"}, "it is not a JSON Schema: /type: 'strin' is not valid under any of the given schemas"),
        ({"items": {"minimum": "1"}}, "it is not a JSON Schema: /items/minimum: '1' is not of type 'number'"),
        ({"pattern": "("}, "its pattern ( cannot be read: missing ) at position 1"),
        ({"$ref": "#/$defs/a"}, "its $ref #/$defs/a leads nowhere"),
        ({"$ref": "chain.json#/$defs/a"}, "the $ref #/$defs/b of chain.json leads nowhere"),
        ({"$ref": "#"}, "its $ref leads back to itself, so that no check would end"),
        ({"allOf": [{"$ref": "circle.json"}]}, "its $ref leads back to itself, so that no check would end"),
        ({"$ref": "http://127.0.0.1:1/a.json"}, "its $ref http://127.0.0.1:1/a.json leads nowhere"),
        ({"items": {"$ref": "missing.json"}}, "missing.json cannot be read: no such file or directory"),
        ({"$ref": "../outside.json"}, "its $ref ../outside.json leads nowhere"),
        ({"$ref": "link.json"}, "its $ref link.json leads nowhere"),
        ({"$ref": "file:///etc/hostname"}, "its $ref file:///etc/hostname leads nowhere"),
        pytest.param(
            {"$ref": "#/$defs/0", "$defs": {str(one): {"$ref": f"#/$defs/{one + 1}"} for one in range(1500)}},
            "it is nested too deeply",
            id="a-chain-of-refs",
        ),
        (
            {"$ref": "inner/wrong.json"},
            "inner/wrong.json is not a JSON Schema: /minLength: -1 is less than the minimum of 0",
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            "it is written for http://json-schema.org/draft-07/schema#",
        ),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_a_fault_of_its_setting(tmp_path: Path, schema: object, fault: str) -> None:
    folder = tmp_path / "schemas"
    (folder / "inner").mkdir(parents=True)
    written(tmp_path, {"type": "string"}, "outside.json")
    written(folder / "inner", {"minLength": -1}, "wrong.json")
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    written(folder, {"$defs": {"a": {"$ref": "#/$defs/b"}}}, "chain.json")
    written(folder, {"$ref": "order.schema.json"}, "circle.json")
    path = written(folder, schema)
    assert fault_of(path) == fault


def test_a_file_that_is_missing_a_folder_or_too_large_is_a_fault(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "no.json") == "it cannot be read: no such file or directory"
    (tmp_path / "folder").mkdir()
    assert "it cannot be read: it is a folder" in fault_of(tmp_path / "folder")
    os.mkfifo(tmp_path / "fifo")
    assert "it cannot be read: it is a fifo" in fault_of(tmp_path / "fifo")
    large = written(tmp_path, " " * (1 << 20) + "{}", "large.json")
    assert "it is larger than 1 MiB" in fault_of(large)


def test_a_schema_may_be_in_several_files_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    written(tmp_path / "inner", {"$ref": "../text.json"}, "name.json")
    written(tmp_path, {"type": "string"}, "text.json")
    endpoint = Endpoint(tmp_path, {"properties": {"name": {"$ref": "inner/name.json"}}})
    assert endpoint.post(b'{"name": "x"}') == (200, "")
    assert endpoint.post(b'{"name": 1}') == (400, "/name is not of type string")


def test_a_schema_where_it_has_no_effect_or_refuses_everything_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, ORDER)
    (every,) = loaded(CLIENT, path, 'WITH EVERY "1h"').faults
    assert every.message == "SCHEMA_FILE refuses what EVERY runs: its payload is empty, which is not JSON"
    reading = SERVER.replace('DESTINATION_TOPIC "out"', 'SOURCE_TOPIC "a"').replace("POST", "GET")
    (read,) = loaded(reading, path).faults
    assert read.message == "SCHEMA_FILE has no effect in an event that answers with what its SOURCE_TOPIC brings"


# The public test suite for 2020-12: JSON_SCHEMA_TEST_SUITE names a copy of its repository.

REMOTE = "leads nowhere"  # cases about documents on http://localhost:1234, and other dialects: nothing is fetched
OWN_DIALECT = "is written for"


def suite(folder: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    for path in sorted((folder / "tests/draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield f"{path.stem}: {group['description']}", group


@pytest.mark.long
@pytest.mark.skipif("JSON_SCHEMA_TEST_SUITE" not in os.environ, reason="JSON_SCHEMA_TEST_SUITE is not set")
def test_the_public_suite_holds_through_a_server_event(tmp_path: Path) -> None:
    failed, refused, count = [], [], 0
    for name, group in suite(Path(os.environ["JSON_SCHEMA_TEST_SUITE"])):
        shutil.rmtree(tmp_path / "schemas", ignore_errors=True)
        (tmp_path / "schemas").mkdir()
        path = written(tmp_path / "schemas", group["schema"])
        result = loaded(SERVER, path)
        if result.has_errors:
            refused.append((name, result.faults[0].message.partition('": ')[2]))
            continue
        endpoint = Endpoint(path.parent, group["schema"])
        for case in group["tests"]:
            count += 1
            status, _ = endpoint.post(json.dumps(case["data"]).encode())
            if (status == 200) != case["valid"]:
                failed.append(f"{name}: {case['description']}")
    print(count, "cases", *refused, sep="\n")
    assert failed == []
    assert count > 1200
    assert all(REMOTE in fault or OWN_DIALECT in fault for _, fault in refused)
