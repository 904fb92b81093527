"""The configuration, the demonstration routes and the sample library that the project ships."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

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
    template: dict[str, Any] = yaml.safe_load((folder / "template.yaml").read_text(encoding="utf-8"))
    return template


# --- the library's templates ---


@each_folder
def test_template_is_described_for_a_list_and_for_a_search(folder: Path) -> None:
    template = read_template(folder)
    assert REQUIRED_KEYS <= set(template) <= ALL_KEYS
    assert template["slug"] == folder.name
    assert 10 <= len(template["title"]) <= 70
    assert 40 <= len(template["summary"]) <= 200
    for name in LISTS:
        assert template[name], name
        assert len(set(template[name])) == len(template[name])
        assert all(isinstance(item, str) for item in template[name]), name
    notebooks = template["notebooks"]
    assert {notebook["filename"] for notebook in notebooks} == {path.name for path in folder.glob("*.lotnb")}
    assert [notebook["filename"] for notebook in notebooks if notebook.get("is_primary")] == [notebooks[0]["filename"]]


@each_folder
def test_template_has_a_text_that_tells_how_to_use_it(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in PARTS] == PARTS
    assert 80 <= len(text.split()) <= 300
    assert not text.startswith("#"), "the title is the template's"
    paths, slugs = re.findall(r"conf/library/[\w./-]+", text), re.findall(r"rest-bridge install --yes ([\w-]+)", text)
    assert paths or slugs
    assert [path for path in paths if not (CONF.parent / path).exists()] == []
    assert set(slugs) <= {folder.name}


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


def test_library_is_imported_without_a_complaint_and_is_unchanged_when_it_is_imported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", str(CONF / "library"), "--database-url", f"sqlite:///{tmp_path / 'library.db'}"]
    count = len(FOLDERS)
    for counts in (f"{count} added, 0 changed, 0 unchanged", f"0 added, 0 changed, {count} unchanged"):
        assert template_api(command) == 0
        assert capsys.readouterr() == (f"{counts}, 0 failed\n", "")


# --- the notebooks ---


@each_notebook
def test_notebook_is_a_list_of_markdown_and_of_cells_with_one_rest_api_route_each(notebook: Path) -> None:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))
    assert all(set(cell) == {"kind", "language", "value"} for cell in cells)
    assert {(cell["kind"], cell["language"]) for cell in cells} == {(1, "markdown"), (2, "lot")}
    assert all(cell["value"].strip() for cell in cells)
    assert {len(REST_API_DEFINITION.findall(cell["value"])) for cell in cells if cell["language"] == "lot"} == {1}


# --- the broker's configuration ---


def test_broker_configuration_loads_both_plugins_for_this_machine_and_one_that_authenticates_clients() -> None:
    config = yaml.safe_load((CONF / "broker.yaml").read_text(encoding="utf-8"))
    assert config["plugins"] == {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "amqtt_rest_bridge.plugin.RestBridgePlugin": {"routes": "conf/routes"},
        "template_api.plugin.TemplateApiPlugin": {"library": "conf/library"},
    }
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
