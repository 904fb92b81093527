"""What other programs import of the two packages: it is there, cheap to import, and the examples do what they say."""

import doctest
import importlib
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import amqtt_rest_bridge
import template_api
from amqtt_rest_bridge import ConfigurationError, RouteFilesError, Severity, load_routes
from tests.support.documents import ROOT, blocks, page

PACKAGES = ("amqtt_rest_bridge", "template_api")
ROUTE = "DEFINE ROUTE R WITH TYPE REST_API\n    ADD REST_API_CONFIG WITH ENABLE_SERVER "


@pytest.mark.parametrize("name", PACKAGES)
def test_the_example_of_a_package_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(importlib.import_module(name))
    assert (results.failed, results.attempted > 3) == (0, True)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_of_a_package_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert all(getattr(package, public) is not None for public in package.__all__)
    assert package.__version__ == amqtt_rest_bridge.__version__ != "unknown"
    with pytest.raises(AttributeError, match="has no attribute 'rumour'"):
        _ = package.rumour


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_imports_no_other(name: str) -> None:
    program = f"import sys, {name}; print(*sorted({{module.partition('.')[0] for module in sys.modules}}))"
    ended = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    imported = set(ended.stdout.split()) - sys.stdlib_module_names
    assert not imported & {"amqtt", "tatsu", "rapidfuzz", "falcon", "sqlalchemy", "sqlmodel", "urllib3", "waitress"}
    assert name in imported


def test_routes_are_loaded_with_the_environment_and_the_secrets_that_are_handed_in(tmp_path: Path) -> None:
    (tmp_path / "r.lot").write_text(ROUTE + 'GET ENV "ON" WITH USERNAME "u" WITH PASSWORD GET SECRET "S"')
    (tmp_path / "S").write_text("hidden\n")
    loaded = load_routes(tmp_path / "r.lot", secrets_dir=tmp_path, environment={"ON": "true"})
    (route,) = loaded.routes
    assert (route.config.enable_server, route.config.password) == (True, "hidden")
    assert [fault.severity for fault in loaded.faults] == [Severity.WARNING]  # it has no event


def test_an_error_in_any_file_is_raised_with_all_faults_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.lot").write_text(ROUTE + '"true"')
    (tmp_path / "b.lot").write_text(ROUTE.replace("ROUTE R", "ROUTE S") + '"yes"\n')
    with pytest.raises(RouteFilesError) as raised:
        load_routes(tmp_path)
    places = [(Path(fault.path).name, fault.severity) for fault in raised.value.faults]
    assert places == [("a.lot", Severity.WARNING), ("b.lot", Severity.WARNING), ("b.lot", Severity.ERROR)]


def test_a_path_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_routes(tmp_path / "nowhere")


def test_the_page_of_the_template_api_shows_the_example_of_the_package() -> None:
    (shown,) = blocks(page("template_api/README.md"), "pycon")
    assert textwrap.indent(shown, "    ") in str(template_api.__doc__)
