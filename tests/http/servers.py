"""HTTP servers of Debian, for what the client promises of real ones."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.ports import free_port
from tests.support.waiting import eventually

LIGHTTPD: Final = shutil.which("lighttpd") or shutil.which("lighttpd", path="/usr/sbin")
NGINX: Final = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextlib.contextmanager
def serving(folder: Path, configuration: str, program: str | None, *options: str, **settings: object) -> Iterator[int]:
    """Run a server with a configuration that names {folder}, {port} and the settings; return its port."""
    port, file = free_port(), folder / "server.conf"
    file.write_text(configuration.format(folder=folder, port=port, **settings), encoding="utf-8")
    options = tuple(option.format(folder=folder, file=file) for option in options)
    with subprocess.Popen([str(program), *options], stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _listens(port))
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
