"""Where the environment forbids Python to write `__pycache__`, compiled modules are kept beside pytest's own cache.

Imported first, before any module of ours or of a library that is worth keeping: pytest's processes and those that tests
start compile each module once, and the next run none.
"""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    sys.pycache_prefix = str(Path(__file__).parents[2] / ".pytest_cache" / "compiled")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
