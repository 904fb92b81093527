"""The route language, one file a case: `cases/valid/NAME.lot` + `.json`, `cases/invalid/NAME.lot` + `.txt`.

A valid case's JSON holds its routes without their defaults, and its warnings and notices; an invalid case's text is
what `rest-bridge check` prints. Adding a case is adding two files.
"""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import LoadResult, Route, Signature
from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts
from amqtt_rest_bridge.lot.sources import SUFFIXES, Source, read
from tests.support.route_text import CASES, ENVIRONMENT, corrected, marked, plain, write_secrets


def cases(kind: str) -> list[object]:
    paths = sorted(path for path in (CASES / kind).iterdir() if path.suffix in SUFFIXES)
    return [pytest.param(path.relative_to(CASES), id=path.stem) for path in paths]


@pytest.fixture(scope="module")
def secrets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(autouse=True)
def in_the_folder_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)


PARSED = ParsedTexts()  # of the files, each of which several tests load


def load_case(path: Path, secrets_dir: Path) -> LoadResult:
    return load(read([path]), Environment(ENVIRONMENT, secrets_dir), PARSED)


@pytest.mark.parametrize("path", cases("valid"))
def test_valid_file_gives_its_routes(path: Path, secrets_dir: Path) -> None:
    loaded = load_case(path, secrets_dir)
    found = {"routes": plain(loaded.routes), "faults": [str(fault).replace("\n", " | ") for fault in loaded.faults]}
    assert found == json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert not loaded.has_errors


@pytest.mark.parametrize("path", cases("valid"))
def test_what_is_shown_of_a_valid_file_reads_back_as_the_same_routes(path: Path, secrets_dir: Path) -> None:
    """Values that are masked are the only difference; they are what `Route.secrets` holds, and user names."""
    before = load_case(path, secrets_dir)
    for route in before.routes:
        if "{payload}" in route.secrets or "=***" in route.definition:  # masked where they are written
            continue
        again = load([Source("shown.lot", route.definition)], Environment(ENVIRONMENT, secrets_dir))
        assert not again.has_errors, (route.definition, again.faults)
        assert plain(without_credentials(again.routes[0])) == plain(without_credentials(route)), route.definition


def without_credentials(route: Route) -> Route:
    """Return a route with the same text for whatever is masked."""
    hidden: dict[str, Any] = {field.name: None for field in fields(route.config) if not field.repr}
    config = replace(route.config, **hidden | {"server_token": ()})
    server = [replace(one, signature=one.signature and Signature("")) for one in route.server_events]
    client = [replace(one, signature=one.signature and Signature(""), headers=()) for one in route.client_events]
    return replace(route, config=config, client_events=tuple(client), server_events=tuple(server), secrets=frozenset())


@pytest.mark.parametrize("path", cases("invalid"))
def test_invalid_file_gives_its_faults(path: Path, secrets_dir: Path) -> None:
    loaded = load_case(path, secrets_dir)
    found = "".join(f"{fault}\n" for fault in loaded.faults).replace(str(secrets_dir), "SECRETS")
    assert found == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert loaded.has_errors


@pytest.mark.parametrize("path", [*cases("valid"), *cases("invalid")])
def test_what_programs_read_of_a_fault_fits_its_text(path: Path, secrets_dir: Path) -> None:
    """Ends lie behind places; each did-you-mean has a replacement, after which it is gone."""
    faults = load_case(path, secrets_dir).faults
    sources = {source.path: source for source in read([path]) if source.text}
    for fault in (fault for fault in faults if fault.path in sources):
        assert marked(sources[fault.path], fault).strip(), fault
        assert (fault.replacement is not None) == (fault.hint or "").startswith("did you mean"), fault
    replacing = [fault for fault in faults if fault.replacement is not None]
    again = [corrected(source, [one for one in replacing if one.path == name]) for name, source in sources.items()]
    if replacing:
        left = {one.message for one in load(again, Environment(ENVIRONMENT, secrets_dir)).faults}
        assert not left & {one.message for one in replacing}, again
