"""What every test shares: the processes that tests start need not compile the same modules and grammar again."""

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the environment forbids Python to write `__pycache__`, a temporary folder takes its place."""
    if not sys.dont_write_bytecode:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "compiled"))
        yield
