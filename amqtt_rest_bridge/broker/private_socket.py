"""The socket of the endpoint, which only the user of the broker can reach; bound when the plugin is constructed."""

import contextlib
import os
import secrets
import socket
import tempfile
import time
from pathlib import Path
from stat import S_ISDIR, S_ISSOCK
from typing import Final

from amqtt_rest_bridge.mqtt.private import PrivateAddress

_LONGEST_PATH: Final = 100  # bytes of the path of a Unix socket; systems allow 103 to 107
_FOLDER: Final = "rest-bridge-"  # prefix of the name of the socket's folder
_NEW_SECONDS: Final = 60.0  # the broker of a younger folder may not listen yet


def bind_private_socket() -> tuple[socket.socket, PrivateAddress]:
    """Listen at a Unix socket in a folder of mode 0700, or without such sockets at a local port with a password."""
    if hasattr(socket, "AF_UNIX"):
        _remove_dead_folders()
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        path = folder / "socket"
        if len(bytes(path)) <= _LONGEST_PATH:
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(str(path))
            unix.listen()
            return unix, PrivateAddress(path)
        folder.rmdir()
    local = socket.socket()
    local.bind(("127.0.0.1", 0))
    local.listen()
    return local, PrivateAddress(None, local.getsockname()[1], secrets.token_urlsafe(32))


def _remove_dead_folders() -> None:
    """Remove the folders of brokers that were killed: no process listens at their sockets."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/socket"):
        with contextlib.suppress(OSError):
            folder, status = path.parent.lstat(), path.lstat()  # no link leads elsewhere
            is_own = S_ISDIR(folder.st_mode) and S_ISSOCK(status.st_mode) and folder.st_uid == os.geteuid()
            if not is_own or time.time() - status.st_mtime < _NEW_SECONDS:
                continue
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.setblocking(False)
                    sock.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                path.parent.rmdir()
