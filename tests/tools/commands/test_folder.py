"""The folder of routes that commands add: whole files, nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.tools.commands.execution import RouteFolder
from tests.support.waiting import SECONDS


def test_files_are_written_replaced_and_removed(tmp_path: Path) -> None:
    folder = RouteFolder(str(tmp_path / "a" / "live"))
    folder.prepare()
    folder.change({"X": "one\r\n", "Y": "two"})
    assert (folder.read("X"), folder.read("Y"), folder.read("Z")) == ("one\r\n", "two", None)
    folder.change({"X": "three", "Y": None, "Z": None})
    assert {path.name: path.read_text() for path in (tmp_path / "a" / "live").iterdir()} == {"X.lot": "three"}


@pytest.mark.parametrize("step", ["os.fdopen", "os.fsync", "Path.replace"])
def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path, step: str) -> None:
    folder = RouteFolder(str(tmp_path))
    folder.change({"X": "old"})
    code = f"""
import os, sys
from pathlib import Path
from amqtt_rest_bridge.tools.commands.execution import RouteFolder
{step} = lambda *_: os._exit(9)
RouteFolder(sys.argv[1]).change({{"X": "new"}})
"""
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2], timeout=SECONDS)
    assert killed.returncode == 9
    assert folder.read("X") == "old"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["X.lot"]
    folder.change({"X": "new"})
    assert folder.read("X") == "new"


def test_a_folder_that_cannot_be_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"the setting coreflux cannot keep routes in .*file: it is a file"):
        RouteFolder(str(tmp_path / "file")).prepare()
    with pytest.raises(ConfigurationError, match="Not a directory"):
        RouteFolder(str(tmp_path / "file" / "live")).prepare()
