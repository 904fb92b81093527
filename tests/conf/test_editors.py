"""What editors are set up with: the lines of the page, and the extension of Visual Studio Code."""

import json
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.cli import lsp
from tests.support.documents import ROOT, page

FOLDER = ROOT / "conf" / "editors"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")

STARTED = """\
const Module = require("node:module");
const load = Module._load;
const said = [];
class LanguageClient {
  constructor(...given) { said.push(given); }
  isRunning() { return true; }
  async start() { if (process.argv[2] === "fail") throw new Error("spawn ENOENT"); }
  stop() { said.push("stopped"); }
}
const vscode = {
  window: { showErrorMessage: (text) => said.push(text) },
  workspace: {
    getConfiguration: () => new Map([["command", "rest-bridge"], ["secretsDir", "/secrets"]]),
  },
};
Module._load = (name, ...rest) =>
  ({ vscode, "vscode-languageclient/node": { LanguageClient } })[name] ?? load(name, ...rest);
const extension = require(process.argv[1]);
extension.activate().then(() => extension.deactivate()).then(() => console.log(JSON.stringify(said)));
"""


def read(name: str) -> Any:
    return json.loads((FOLDER / "vscode" / name).read_text())


def test_the_files_that_the_extension_names_are_there() -> None:
    package = read("package.json")
    (language,), (grammar,) = package["contributes"]["languages"], package["contributes"]["grammars"]
    assert (FOLDER / "vscode" / language["configuration"]).is_file()
    assert grammar["scopeName"] == json.loads((FOLDER / "lot.tmLanguage.json").read_text())["scopeName"]
    for rule in read("language-configuration.json")["indentationRules"].values():
        assert re.search(rule["pattern"], "define route X with type rest_api", re.IGNORECASE)


@needs_node
@pytest.mark.parametrize("how", ["succeed", "fail"])
def test_the_extension_starts_the_language_server(how: str) -> None:
    command = ["node", "-e", STARTED, str(FOLDER / "vscode" / "extension.js"), how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (_, _, server, options), *rest = json.loads(run.stdout)
    assert server == {"command": "rest-bridge", "args": ["lsp", "--secrets-dir", "/secrets"]}
    assert {"language": "lot"} in options["documentSelector"]
    assert rest[-1] == "stopped"
    assert (how == "fail") == ("pip install 'amqtt-rest-bridge[lsp]'" in rest[0])


def test_the_lines_of_helix_and_neovim_start_the_language_server() -> None:
    helix = tomllib.loads(block("toml"))
    server = helix["language-server"]["rest-bridge"]
    assert [server["command"], *server["args"]] == ["rest-bridge", "lsp"]
    assert helix["language"][0]["language-servers"] == ["rest-bridge"]
    assert "cmd = { 'rest-bridge', 'lsp' }" in block("lua")
    assert "conf/editors/README.md" in lsp.DESCRIPTION


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", page("conf/editors/README.md"), re.DOTALL)
    assert found is not None
    return found[1]


@needs_npm
@pytest.mark.long
def test_the_extension_is_built_as_the_page_says(tmp_path: Path) -> None:
    """Fetches packages of npm's registry; skipped where it cannot be reached."""
    shutil.copytree(FOLDER, tmp_path / "editors", ignore=shutil.ignore_patterns("node_modules", "dist"))
    folder = tmp_path / "editors" / "vscode"
    if subprocess.run(["npm", "ping"], cwd=folder, capture_output=True, timeout=60).returncode:
        pytest.skip("npm's registry cannot be reached")
    for line in ("install", "run package"):
        run = subprocess.run(["npm", *line.split()], cwd=folder, capture_output=True, text=True, timeout=500)
        assert run.returncode == 0, run.stderr
        assert f"npm {line}" in page("conf/editors/README.md")
    with zipfile.ZipFile(folder / "rest-bridge-routes.vsix") as built:
        names = set(built.namelist())
    assert {"extension/dist/extension.js", "extension/dist/lot.tmLanguage.json", "extension/package.json"} <= names
    assert not [name for name in names if "node_modules" in name]
