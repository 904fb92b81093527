"""A client that openapi-python-client generates from `openapi.json`, calling the served API.

OPENAPI_PYTHON_CLIENT names the generator's program (PyPI). It needs an older typer than ours may be, so it has an
environment of its own: `.ci/run` makes one.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from template_api.query import description
from tests.support.library_store import template

LIBRARY = [
    template("weather", title="Poll the weather", difficulty="beginner", tags=["http"], category="Integration"),
    template("webhook", title="Receive a webhook", notebooks=[{"filename": "a.lotnb", "cells": [{"value": "x"}]}]),
]
CALLS = """
import json, sys
from client import Client
from client.api.search import search_templates, search_templates_with_filters, suggest_templates
from client.api.service import get_description, get_health
from client.api.templates import get_template, list_facets, list_templates
from client.models import Difficulty, Error, SearchBody

with Client(base_url=sys.argv[1], raise_on_unexpected_status=True) as client:
    beginners = list_templates.sync(client=client, difficulty=Difficulty.BEGINNER, q="weather")
    both = list_templates.sync(client=client)
    unknown = get_template.sync(client=client, id_or_slug="missing")
    assert isinstance(unknown, Error)
    blank = search_templates.sync(client=client, q=" ")
    assert isinstance(blank, Error)
    body = SearchBody.from_dict({"query": "webhok", "filters": {"difficulty": None}, "limit": 5})
    [corrected] = search_templates_with_filters.sync(client=client, body=body).results
    answers = {
        "health": get_health.sync(client=client).status,
        "description": get_description.sync(client=client)["openapi"],
        "beginners": [[each.slug, each.difficulty is Difficulty.BEGINNER] for each in beginners.results],
        "lists have content": any("content" in each.to_dict() for each in both.results),
        "templates": sorted(each.slug for each in both.results),
        "cells": get_template.sync(client=client, id_or_slug="webhook").template.notebooks[0].cells[0].to_dict(),
        "found": [each.slug for each in search_templates.sync(client=client, q="weather").results],
        "corrected": [corrected.slug, corrected.score, [each.to_dict() for each in corrected.matched]],
        "suggested": [each.slug for each in suggest_templates.sync(client=client, q="rec").suggestions],
        "facets": {each.slug: each.count for each in list_facets.sync(client=client).tags},
        "unknown": unknown.error.code,
        "blank": blank.error.code,
    }
print(json.dumps(answers))
"""


@pytest.mark.skipif(
    "OPENAPI_PYTHON_CLIENT" not in os.environ,
    reason="OPENAPI_PYTHON_CLIENT does not name the program of openapi-python-client",
)
def test_a_generated_client_works(serve: Callable[..., Any], tmp_path: Path) -> None:
    generator = Path(os.environ["OPENAPI_PYTHON_CLIENT"])
    (tmp_path / "openapi.json").write_text(json.dumps(description()))
    command = [str(generator), "generate", "--path", "openapi.json", "--output-path", "client", "--meta", "none"]
    path = f"{generator.parent}{os.pathsep}{os.environ['PATH']}"  # it runs ruff
    generated = subprocess.run(
        [*command, "--fail-on-warning"], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert generated.returncode == 0, generated.stdout + generated.stderr
    library = tmp_path / "library.jsonl"
    library.write_text("".join(json.dumps(each) + "\n" for each in LIBRARY))
    with serve("--database-url", f"sqlite:///{tmp_path / 'l.db'}", "--library", str(library)) as served:
        program = [str(generator.with_name("python")), "-c", CALLS, f"http://127.0.0.1:{served.port}"]
        called = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert called.returncode == 0, called.stderr
    answers = json.loads(called.stdout)
    score = answers["corrected"].pop(1)
    assert 0 < score <= 1
    assert answers == {
        "health": "ok",
        "description": "3.1.0",
        "beginners": [["weather", True]],
        "lists have content": False,
        "templates": ["weather", "webhook"],
        "cells": {"value": "x"},
        "found": ["weather"],
        "corrected": ["webhook", [{"typed": "webhok", "found": "webhook"}]],
        "suggested": ["webhook"],
        "facets": {"http": 1},
        "unknown": "template_not_found",
        "blank": "invalid_parameter",
    }
