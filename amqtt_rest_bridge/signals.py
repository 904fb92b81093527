"""The main thread of a program: its event loop, the signals that stop it, and the one that has it reload."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import FrameType
from typing import Final

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 10.0  # from a signal; then the process ends at once


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        log.debug("event loop: asyncio; the extra [fast] installs uvloop")
        return asyncio.new_event_loop
    log.info("event loop: uvloop %s", version("uvloop"))
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Signals:
    """SIGTERM and SIGINT: the first begins the shutdown, a second one ends the process at once.

    The handlers run between two bytecodes, so they write with one system call and take no lock; the watchdog is a
    thread of its own, since the loop may be what hangs.

    Args:
        last_words: Writes the line that ends the process.
    """

    def __init__(self, last_words: Callable[[str], None]) -> None:
        self.received: signal.Signals | None = None
        self._last_words = last_words
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def install(self) -> None:
        """Handle both signals from now on, whether a loop runs or not.

        SIGHUP, which asks for a reload while the broker serves, is ignored before and after: its default would end the
        process.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake `wait` on this loop from now on."""
        self._loop = loop

    async def wait(self) -> signal.Signals | None:
        """Wait for the first signal."""
        if self.received is None:
            await self._event.wait()
        return self.received

    def begin_shutdown(self) -> None:
        """Start the time limit of the shutdown; when it is over the process ends at once."""
        watchdog = threading.Timer(SHUTDOWN_SECONDS, self._overdue)
        watchdog.daemon = True
        watchdog.start()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        """Begin the shutdown; on a second signal end the process at once."""
        name = signal.Signals(number)
        if self.received is not None:
            self._last_words(f"rest-bridge: error: {name.name} while shutting down: ended at once")
            os._exit(128 + number)
        self.received = name
        self.begin_shutdown()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def _overdue(self) -> None:
        self._last_words(f"rest-bridge: error: not shut down within {SHUTDOWN_SECONDS:.0f} s: ended at once")
        os._exit(1)


@contextlib.contextmanager
def reloading_on_sighup(reload: Callable[[], object]) -> Iterator[None]:
    """Call `reload` on the running loop for each SIGHUP, where the loop runs on the main thread, until the block ends.

    Elsewhere signals are not ours. The handler from before is restored in one step: `loop.remove_signal_handler` leaves
    the default for a moment, which ends the process.
    """
    loop = asyncio.get_running_loop()
    try:
        before = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload))
    except ValueError:
        log.debug("SIGHUP does not reload: this loop is not on the main thread")
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before or signal.SIG_DFL)
