"""Which event loop a service runs on. Main thread."""

import asyncio
import logging
from collections.abc import Callable
from importlib.metadata import version

log = logging.getLogger(__name__)


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
