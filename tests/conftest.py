"""What every test shares: compiled modules for the processes that tests start, free ports, a target, a real browser.

Tests that need Chromium are left out where it is not installed, and a line says so.
"""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.support.compiled import compile_tests  # isort: skip  # first, so that nothing is compiled twice
import hypothesis  # isort: skip

from tests.support.browser import CHROMIUM, Page, browsing
from tests.support.http_recorder import Recorder, recording
from tests.support.ports import free_port

TEMPORARY = pytest.StashKey[Path]()
"""The folder for temporary files of all pytest processes, and of what these start."""
LEFT = pytest.StashKey[list[str]]()
"""What tests have left in it."""


def pytest_configure(config: pytest.Config) -> None:
    """Bound no property test by the clock, and restore Ctrl-C for the processes that tests start.

    A shell that runs pytest in the background ignores it.
    """
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("unhurried", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("unhurried")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses") and not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # it keeps those of its last runs
        config.stash[TEMPORARY] = folder = Path(tempfile.mkdtemp(prefix="tests-"))
        folder.chmod(0o711)  # PostgreSQL is not run as root
        os.environ["TMPDIR"] = str(folder)
        if config.args == config.getini("testpaths"):
            compile_tests()


@pytest.hookimpl(trylast=True)  # Hypothesis wants to be asked nothing before, and xdist's processes start after it
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the table of Unicode that Hypothesis keeps, which takes a second: once, and not in each process."""
    if session.config.getoption("numprocesses") and not hasattr(session.config, "workerinput"):
        hypothesis.find(hypothesis.strategies.text(), lambda _: True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the temporary files that tests have left behind, once their processes have ended; the summary names them.

    They fail no run: a process that was killed may leave some, on a machine that stalls between two of its lines.
    """
    folder = session.config.stash.get(TEMPORARY, None)
    if folder is not None:
        # Those of multiprocessing go with their interpreter, which may just be ending.
        session.config.stash[LEFT] = [path.name for path in folder.iterdir() if not path.name.startswith("pymp-")]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through thousands of tests, now and whenever one of them makes it run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a browser, and put their files first: one process runs them, and starts it once.

    The other files are mixed: those of some folders mostly wait, those of others compute, and each process gets a run
    of neighbours.
    """
    needing = [item for item in items if "chromium" in getattr(item, "fixturenames", ())]
    for item in needing:
        item.add_marker("chromium")
        if CHROMIUM is None:
            item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))
    first = {item.path for item in needing}
    items.sort(key=lambda item: (item.path not in first, crc32(item.nodeid.partition("::")[0].encode())))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, []):
        terminalreporter.write_line(f"Temporary files that were left behind: {', '.join(left)}", red=True)
    where = CHROMIUM or "not found, the tests of pages and of real cross-origin requests were skipped"
    terminalreporter.write_line(f"Chromium: {where}")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what a command that was called here did to logging: it writes to the captured output of its own test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest.fixture
def unused_port() -> int:
    """Return a port on which nothing listens."""
    return free_port()


@pytest.fixture
def target() -> Iterator[Recorder]:
    """A server that routes send requests to; it answers with the body that came."""
    with recording() as recorder:
        yield recorder


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; tests that use it, or a page, get the mark `chromium`."""
    assert CHROMIUM is not None
    return CHROMIUM


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Page]:
    """A browser for all tests of this process: one takes a second of processor time to start."""
    with browsing(chromium) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A page of ordinary size, on which no script may fail and nothing be refused by its Content-Security-Policy."""
    browser.restore()
    yield browser
    assert browser.errors == []
