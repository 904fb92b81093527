"""The recipes of consumers of the template API: in Python against a real API, in TypeScript checked by its compiler."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import responses
from responses.registries import OrderedRegistry

from tests.support.documents import ROOT
from tests.support.served_api import Served, serving

FOLDER = ROOT / "conf" / "recipes" / "library"
URL = "https://library.example"
NODE_MODULES = os.environ.get("OPENAPI_TYPESCRIPT", "")


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = spec_from_file_location("library_client", FOLDER / "library_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("library")
    url = f"sqlite:///{folder / 'library.db'}"
    with serving(folder, "--database-url", url, "--library", str(ROOT / "conf" / "library")) as served:
        yield served


def test_a_consumer_searches_lists_and_reads(recipe: ModuleType, api: Served) -> None:
    client = recipe.LibraryClient(f"http://127.0.0.1:{api.port}")
    assert client.search("recieve webhok", limit=3)[0]["slug"] == "webhook-intake"
    assert {each["difficulty"] for each in client.search("webhook", difficulty="beginner")} == {"beginner"}
    listed = [each["slug"] for each in client.templates(limit=5)]
    assert len(listed) == len(set(listed)) == 24
    assert client.template("webhook-intake")["notebooks"][0]["cells"]


def test_a_refusal_has_its_code_and_its_hint(recipe: ModuleType, api: Served) -> None:
    client = recipe.LibraryClient(f"http://127.0.0.1:{api.port}")
    for act, status, code in (
        (lambda: client.search("x", limit=99), 400, "invalid_body"),
        (lambda: client.search("x", dificulty="beginner"), 400, "invalid_parameter"),
        (lambda: list(client.templates(limit=99)), 400, "invalid_parameter"),
        (lambda: client.template("none"), 404, "template_not_found"),
    ):
        with pytest.raises(recipe.LibraryError) as refused:
            act()
        assert (refused.value.status, refused.value.code) == (status, code)
        assert refused.value.hint
        assert refused.value.hint in str(refused.value)


SEARCH = f"{URL}/api/search"
NOT_READY = {"error": "The index is built", "code": "search_not_ready", "message": "m", "hint": "Try again."}


@pytest.fixture
def answers() -> Iterator[Callable[..., object]]:
    """Answers to be given in their order, each by its status."""
    with responses.RequestsMock(registry=OrderedRegistry) as mocked:
        yield lambda status, **answer: mocked.add(responses.POST, SEARCH, status=status, **answer)


@pytest.mark.parametrize("status", [503, 429])
def test_what_passes_by_itself_is_waited_for_as_long_as_the_api_says(
    recipe: ModuleType, answers: Callable[..., object], status: int
) -> None:
    for _ in range(2):
        answers(status, json=NOT_READY, headers={"Retry-After": "0"})
    answers(200, json={"results": [{"slug": "one"}]})
    assert recipe.LibraryClient(URL).search("x") == [{"slug": "one"}]


def test_what_does_not_pass_ends_with_the_last_answer(recipe: ModuleType, answers: Callable[..., object]) -> None:
    for _ in range(3):
        answers(503, json=NOT_READY, headers={"Retry-After": "0"})
    with pytest.raises(recipe.LibraryError) as refused:
        recipe.LibraryClient(URL, tries=2).search("x")
    assert (refused.value.code, refused.value.hint) == ("search_not_ready", "Try again.")


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", '{"detail": "proxy"}', '{"error": "proxy"}'])
def test_the_answer_of_a_proxy_is_an_error_too(recipe: ModuleType, answers: Callable[..., object], body: str) -> None:
    answers(500, body=body)
    with pytest.raises(recipe.LibraryError, match="no_code"):
        recipe.LibraryClient(URL).search("x")


@pytest.mark.skipif(not NODE_MODULES, reason="OPENAPI_TYPESCRIPT does not name a folder with its node_modules")
def test_the_consumer_in_typescript_has_the_types_of_the_api(tmp_path: Path) -> None:
    folder = tmp_path / "typescript"
    shutil.copytree(FOLDER / "typescript", folder)
    (folder / "node_modules").symlink_to(Path(NODE_MODULES) / "node_modules")

    def run(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(folder / "node_modules" / ".bin" / name), *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    made = run("openapi-typescript", str(ROOT / "template_api" / "openapi.json"), "-o", "schema.d.ts")
    assert made.returncode == 0, made.stderr
    checked = run("tsc", "--noEmit")
    assert checked.returncode == 0, checked.stdout
    source: Any = folder / "library.ts"
    source.write_text(source.read_text().replace("difficulty: difficulty ?? null", "difficulty: 7"))
    assert "Type 'number' is not assignable" in run("tsc", "--noEmit").stdout
