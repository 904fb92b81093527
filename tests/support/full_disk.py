"""A disk without room, for this process only."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.embedded_broker import Host


@contextmanager
def full_disk() -> Iterator[None]:
    """Refuse every write of this process beyond the first bytes of a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def tidy(host: Host) -> None:
    """Do what the plugin does every second with its spool."""
    lossless: Any = host.plugin._lossless
    lossless._spool.checkpoint()
    lossless._spool.finish_checkpoint()
