"""The compiled grammar between processes and starts: bytes that only this version has written. For any thread.

The file is in `__pycache__` beside this module, or below `PYTHONPYCACHEPREFIX`, and follows Python's rules for compiled
modules: what can be written there could also be put in the place of this module, so that unpickling it adds no risk.
"""

import contextlib
import hashlib
import importlib.util
import stat
import sys
import tempfile
from pathlib import Path

_FILE = Path(importlib.util.cache_from_source(str(Path(__file__).with_name("route.tatsu")))).with_suffix(".pickle")
_DIGEST = hashlib.sha256().digest_size


def seal(content: bytes, version: str) -> bytes:
    """Return the content behind a digest of it and of the version of what it is made from."""
    return hashlib.sha256(version.encode() + content).digest() + content


def unseal(sealed: bytes, version: str) -> bytes:
    """Return the content, or b"" if it is damaged or of another version."""
    content = sealed[_DIGEST:]
    return content if seal(content, version) == sealed else b""


def load() -> bytes:
    """Return what `save` wrote in an earlier process, or b"": nothing yet, or a place that every user may write to."""
    try:
        if any(path.stat().st_mode & stat.S_IWOTH for path in (_FILE, _FILE.parent)):
            return b""
        return _FILE.read_bytes()
    except OSError:
        return b""


def save(sealed: bytes) -> None:
    """Replace the file atomically; no error where it cannot be written, as in a read-only or a root's installation."""
    if sys.dont_write_bytecode:
        return
    with contextlib.suppress(OSError):
        _FILE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FILE.parent) as folder:  # removed whatever happens: a full disk, say
            new = Path(folder, _FILE.name)
            new.write_bytes(sealed)
            new.chmod(0o644)
            new.replace(_FILE)
