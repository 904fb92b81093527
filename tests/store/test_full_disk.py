"""A spool and a file of failures on a full disk, real and small: nothing is lost, and it recovers without help."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import small_disk

UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
CAN_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
)
TMPFS = pytest.mark.skipif(not CAN_MOUNT, reason="mounting a file system is not permitted here")

# Other files take nothing from a limit on each file's size.
LIMITED = [name for name in small_disk.SCENARIOS if name != "other_files"]


@pytest.mark.parametrize(
    ("kind", "prefix", "scenarios"),
    [
        pytest.param("tmpfs", UNSHARE, list(small_disk.SCENARIOS), marks=TMPFS, id="tmpfs"),
        pytest.param("limit", [], LIMITED, id="limit"),
    ],
)
def test_a_full_disk_is_left_without_help(tmp_path: Path, kind: str, prefix: list[str], scenarios: list[str]) -> None:
    program = [sys.executable, "-m", "tests.store.small_disk", kind, str(tmp_path), *scenarios]
    ended = subprocess.run([*prefix, *program], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
