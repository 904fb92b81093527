"""Where the environment forbids Python to write `__pycache__`, compiled modules are kept beside pytest's own cache.

Imported first, before any module of ours or of a library that is worth keeping: pytest's processes and those that tests
start compile each module once, and the next run none.

`compile_tests` is for the first run of all tests: six processes that collect side by side would compile each of the 270
files six times.
"""

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

TESTS = Path(__file__).parents[1]
LAST = "test_wording"  # to be collected

if sys.dont_write_bytecode:
    sys.pycache_prefix = str(TESTS.parent / ".pytest_cache" / "compiled")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def compile_tests() -> None:
    """Compile all tests as pytest does, half of them in each of two processes, unless that was done before."""
    if any(Path(cache_from_source(str(TESTS / f"{LAST}.py"))).parent.glob(f"{LAST}.*-pytest-*.pyc")):
        return
    collect = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    paths = sorted(str(path) for path in TESTS.iterdir() if path.is_dir() or path.name.startswith("test_"))
    halves = [
        subprocess.Popen([*collect, *paths[half::2]], stdout=subprocess.DEVNULL, cwd=TESTS.parent) for half in (0, 1)
    ]
    for process in halves:
        process.wait()
