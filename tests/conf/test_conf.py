"""The configuration, the demonstration routes and the sample library that the project ships."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from amqtt_rest_bridge.plugin import RestBridgePlugin
from template_api.cli import main as template_api
from template_api.plugin import TemplateApiPlugin
from tests.support.commands import taken_port

CONF: Final = Path(__file__).parents[2] / "conf"
FOLDERS: Final = sorted(path.parent for path in (CONF / "library").glob("*/template.yaml"))
NOTEBOOKS: Final = sorted((CONF / "library").rglob("*.lotnb"))

REQUIRED_KEYS: Final = {"slug", "title", "summary", "category", "difficulty", "tags", "status", "notebooks"}
ALL_KEYS: Final = REQUIRED_KEYS | {
    "primitives", "protocols", "services", "routes", "broker_version", "published_at",
}  # fmt: skip
LISTS: Final = ("tags", "primitives", "protocols", "services", "routes")
PARTS: Final = ["What you need", "Try it", "Make it yours", "When it does not work"]
REST_API_DEFINITION: Final = re.compile(r"^DEFINE ROUTE ([A-Za-z0-9_.-]+) WITH TYPE REST_API$", re.MULTILINE)

each_folder = pytest.mark.parametrize("folder", [pytest.param(path, id=path.name) for path in FOLDERS])
each_notebook = pytest.mark.parametrize(
    "notebook", [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in NOTEBOOKS]
)


def read_template(folder: Path) -> dict[str, Any]:
    template = yaml.safe_load((folder / "template.yaml").read_text(encoding="utf-8"))
    return cast(dict[str, Any], template)


def read_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))
    return cast(list[dict[str, Any]], cells)


def route_names(text: str) -> list[str]:
    return REST_API_DEFINITION.findall(text)


# --- the library's templates ---


@each_folder
def test_template_has_the_known_keys_and_no_others(folder: Path) -> None:
    keys = set(read_template(folder))
    assert keys >= REQUIRED_KEYS
    assert keys <= ALL_KEYS


@each_folder
def test_template_is_described_for_a_list_and_for_a_search(folder: Path) -> None:
    template = read_template(folder)
    assert template["slug"] == folder.name
    assert 10 <= len(template["title"]) <= 70
    assert 40 <= len(template["summary"]) <= 200
    for name in LISTS:
        assert template[name], name
        assert len(set(template[name])) == len(template[name])
        assert all(isinstance(item, str) for item in template[name]), name


@each_folder
def test_template_has_a_text_that_tells_how_to_use_it(folder: Path) -> None:
    content = (folder / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", content, re.MULTILINE)
    assert [heading for heading in headings if heading in PARTS] == PARTS
    assert 80 <= len(content.split()) <= 300
    assert not content.startswith("#"), "the title is the template's"


@each_folder
def test_template_lists_exactly_its_notebooks_and_one_is_primary(folder: Path) -> None:
    notebooks = read_template(folder)["notebooks"]
    assert sorted(notebook["filename"] for notebook in notebooks) == sorted(
        path.name for path in folder.glob("*.lotnb")
    )
    assert [notebook["filename"] for notebook in notebooks if notebook.get("is_primary")] == [notebooks[0]["filename"]]


@each_folder
def test_command_in_the_text_names_the_template_or_a_path_that_exists(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    paths, slugs = re.findall(r"conf/library/[\w./-]+", text), re.findall(r"rest-bridge install --yes ([\w-]+)", text)
    assert paths or slugs
    assert [path for path in paths if not (CONF.parent / path).exists()] == []
    assert [slug for slug in slugs if slug != read_template(folder)["slug"]] == []


def test_library_has_the_variety_that_a_search_needs() -> None:
    templates = [read_template(folder) for folder in FOLDERS]
    assert Counter(template["status"] for template in templates) == {
        "published": len(templates) - 2,
        "draft": 1,
        "hidden": 1,
    }
    published = [template for template in templates if template["status"] == "published"]
    assert len(published) >= 12
    assert {template["difficulty"] for template in published} == {"beginner", "intermediate", "advanced"}
    assert len({template["category"] for template in published}) >= 5
    assert len({tag for template in published for tag in template["tags"]}) >= 30
    assert sum(len(template["notebooks"]) > 1 for template in published) >= 2


def test_times_of_publication_are_distinct_moments_with_a_zone() -> None:
    times = [
        datetime.fromisoformat(template["published_at"])
        for template in map(read_template, FOLDERS)
        if template["status"] != "draft"
    ]
    assert all(time.tzinfo is not None for time in times)
    assert len(set(times)) == len(times)


@pytest.fixture
def import_library(tmp_path: Path) -> Callable[[], int]:
    """Return what imports the sample library into a database of the test's own and returns the exit status."""
    database = f"sqlite:///{tmp_path / 'library.db'}"
    return lambda: template_api(["import", str(CONF / "library"), "--database-url", database])


def test_library_is_imported_without_a_complaint(
    import_library: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_library() == 0
    printed = capsys.readouterr()
    assert printed.out == f"{len(FOLDERS)} added, 0 changed, 0 unchanged, 0 failed\n"
    assert printed.err == ""


def test_library_imported_again_is_unchanged(
    import_library: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    import_library()
    capsys.readouterr()
    assert import_library() == 0
    assert capsys.readouterr().out == f"0 added, 0 changed, {len(FOLDERS)} unchanged, 0 failed\n"


# --- the notebooks ---


@each_notebook
def test_notebook_is_a_list_of_markdown_and_lot_cells(notebook: Path) -> None:
    cells = read_cells(notebook)
    assert all(set(cell) == {"kind", "language", "value"} for cell in cells)
    assert {(cell["kind"], cell["language"]) for cell in cells} == {(1, "markdown"), (2, "lot")}
    assert all(cell["value"].strip() for cell in cells)


@each_notebook
def test_every_lot_cell_holds_one_rest_api_route(notebook: Path) -> None:
    lot_cells = [cell["value"] for cell in read_cells(notebook) if cell["language"] == "lot"]
    assert [len(route_names(cell)) for cell in lot_cells] == [1] * len(lot_cells)


def test_route_names_are_unique_over_demonstration_and_library() -> None:
    texts = [cell["value"] for notebook in NOTEBOOKS for cell in read_cells(notebook) if cell["language"] == "lot"]
    texts += [path.read_text(encoding="utf-8") for path in (CONF / "routes").glob("*.lot")]
    names = Counter(name for text in texts for name in route_names(text))
    assert [name for name, count in names.items() if count > 1] == []


# --- the broker's configuration ---


def test_broker_configuration_loads_both_plugins_and_one_that_authenticates_clients() -> None:
    config = yaml.safe_load((CONF / "broker.yaml").read_text(encoding="utf-8"))
    assert config["plugins"] == {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "amqtt_rest_bridge.plugin.RestBridgePlugin": {"routes": "conf/routes"},
        "template_api.plugin.TemplateApiPlugin": {"library": "conf/library"},
    }


def test_broker_configuration_listens_on_this_machine_only() -> None:
    config = yaml.safe_load((CONF / "broker.yaml").read_text(encoding="utf-8"))
    assert [listener["bind"] for listener in config["listeners"].values()] == ["127.0.0.1:1883"]


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        pytest.param("RestBridgePlugin", asdict(RestBridgePlugin.Config()), id="bridge"),
        pytest.param("TemplateApiPlugin", asdict(TemplateApiPlugin.Config()), id="template-api"),
    ],
)
def test_settings_in_comments_are_the_defaults(name: str, defaults: dict[str, Any]) -> None:
    section = (CONF / "broker.yaml").read_text(encoding="utf-8").partition(f".{name}:")[2].partition("\n\n")[0]
    commented = yaml.safe_load("\n".join(re.findall(r"^    # (\w+: .+)$", section, re.MULTILINE)))
    assert len(commented) >= 4
    assert commented == {setting: defaults[setting] for setting in commented}


# --- the practice API ---


def test_a_practice_api_whose_port_is_taken_says_so_on_one_line() -> None:
    with taken_port() as port:
        command = [sys.executable, str(CONF / "practice_api.py"), "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = f"port {port} is taken: end the other practice API\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", said)
