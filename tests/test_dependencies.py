"""The bounds of setup.cfg: the lowest ones can be tried, and an upper one is a major version or has its reason."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TEXT: Final = (ROOT / "setup.cfg").read_text()


def lines_of(*names: str) -> list[str]:
    """Return the lines of some lists of requirements, with their comments."""
    found = [re.search(rf"^{name} =\n((?: .*\n)+)", TEXT, re.MULTILINE) for name in names]
    return [line.strip() for match in found if match for line in match[1].splitlines()]


def test_an_upper_bound_is_a_major_version_or_has_its_reason() -> None:
    lines = lines_of("install_requires", "postgres", "fast", "lsp", "test", "benchmark")
    assert len(lines) > 40
    for before, line in zip(["", *lines], lines, strict=False):
        bound = re.search(r"<([\d.]+)", line)
        assert line.startswith("#") or bound is None or "." not in bound[1] or before.startswith("#"), line


def test_the_lowest_version_of_each_dependency_is_a_constraint() -> None:
    command = [sys.executable, str(ROOT / ".ci/lowest")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    named = [line for line in lines_of("install_requires", "postgres", "fast", "lsp") if not line.startswith("#")]
    assert printed.split() == [re.sub(r"\[.*?\]", "", re.split("[,;]", line)[0]).replace(">=", "==") for line in named]
