"""The description of the API: valid, complete, and what the served API keeps."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from template_api.query import description, resolved
from tests.support.documents import ROOT
from tests.support.served_api import Served

DESCRIPTION = description()
OPERATIONS = [
    pytest.param(operation, id=f"{method.upper()} {path}")
    for path, operations in DESCRIPTION["paths"].items()
    for method, operation in operations.items()
]


def test_the_description_is_valid_openapi_3_1() -> None:
    assert DESCRIPTION["openapi"] == "3.1.0"
    assert DESCRIPTION["info"]["version"] == "1.0.0"
    assert list(OpenAPIV31SpecValidator(dict(DESCRIPTION)).iter_errors()) == []


def test_every_member_has_a_schema_that_generators_read() -> None:
    """Some refuse `false`; `test_openapi_client` generates a client where it can."""
    members = [schema for each in _named(DESCRIPTION, "properties") for schema in each.values()]
    assert len(members) > 40
    assert [schema for schema in members if not isinstance(schema, dict)] == []


def _named(value: Any, name: str) -> Iterator[Any]:
    """Yield the members of this name at any depth."""
    if isinstance(value, dict) and name in value:
        yield value[name]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _named(each, name)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_described_with_examples(operation: dict[str, Any]) -> None:
    assert operation["operationId"]
    assert operation["summary"]
    for parameter in resolved(operation.get("parameters", [])):
        assert parameter["description"]
        assert parameter["schema"]["type"]
        assert parameter["in"] != "query" or parameter["schema"]["x-allowed"], "what a message says"
    for response in operation["responses"].values():
        assert response["description"]
        assert "X-Request-ID" in response["headers"]
        for content in response.get("content", {}).values():
            assert content["example"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_example_fits_its_schema(operation: dict[str, Any]) -> None:
    registry: Registry[Any] = Registry().with_resource("urn:api", DRAFT202012.create_resource(DESCRIPTION))
    described = [operation["requestBody"]] if "requestBody" in operation else []
    for part in [*described, *operation["responses"].values()]:
        for content in part.get("content", {}).values():
            schema = json.loads(json.dumps(content["schema"]).replace('"#/', '"urn:api#/'))
            Draft202012Validator(schema, registry=registry).validate(content["example"])


def test_the_served_description_is_the_packaged_one(api: Served) -> None:
    assert api.get("/openapi.json").json == DESCRIPTION


def schemathesis(port: int, folder: Path, examples: int, phases: str) -> "subprocess.CompletedProcess[str]":
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"http://127.0.0.1:{port}/openapi.json",
        "--checks", "all", "--max-examples", str(examples), "--phases", phases, "--no-color",
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=550)


def test_schemathesis_finds_nothing(api: Served, tmp_path: Path) -> None:
    """With all its checks; in a process of its own, so that its pytest plugin plays no part."""
    ran = schemathesis(api.port, tmp_path, 2, "examples,fuzzing,stateful")
    assert ran.returncode == 0, ran.stdout
    assert "No issues found" in ran.stdout
    assert api.log.read_text().count("ERROR") == 0


@pytest.mark.long
def test_schemathesis_finds_nothing_with_many_examples(api: Served, tmp_path: Path) -> None:
    ran = schemathesis(api.port, tmp_path, 1000, "examples,coverage,fuzzing,stateful")
    assert ran.returncode == 0, ran.stdout
