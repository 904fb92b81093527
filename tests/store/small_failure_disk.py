"""A disk of 4 MB that is full, and a file of failures on it; run in a process of its own by `test_failure_file`.

    python -m tests.store.small_failure_disk KIND FOLDER

For the kinds see `tests.store.small_disk`.
"""

import os
import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.store import failure_file
from amqtt_rest_bridge.store.failure_file import FailureFile
from tests.support.waiting import eventually

SIZE: Final = 4 << 20


def kept(number: int, size: int = 20_000) -> KeptRun:
    """Return a run whose payload is as large."""
    record = Run(float(number), "call", str(number), "R", "E", "in", code="http_status")
    return KeptRun(record, "in", 0.0, bytes(size), None)


def loaded(path: Path) -> list[str | None]:
    """Return the ids that a file holds."""
    with closing(FailureFile(path, KeptRun)) as file:
        return [one.run.id for one in file.loaded]


def main(kind: str, folder: str) -> None:
    """Fill the disk, begin on it, and make room."""
    path, other = Path(folder, "failures.db"), Path(folder, "other")
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    failure_file._AGAIN_SECONDS = 0.05  # type: ignore[misc]
    with closing(FailureFile(path, KeptRun)) as file:
        for number in range(10):
            file.put(str(number), kept(number))
        eventually(lambda: not file.waiting)
        full(kind, other)
        for number in range(10, 40):
            file.put(str(number), kept(number))
        eventually(lambda: file.trouble is not None)
        assert file.trouble == f"the disk of {path} is full; make room on it, and what waits is written"
        file.put("0", None)
        assert file.waiting
        roomy(kind, other)
        eventually(lambda: not file.waiting and file.trouble is None)
    assert loaded(path) == [str(number) for number in range(1, 40)]
    full(kind, other)
    with closing(FailureFile(path, KeptRun)) as file:  # starts, with what it held or a trouble that is said
        assert len(file.loaded) == 39 or file.trouble is not None
        roomy(kind, other)
        file.put("40", kept(40))
        eventually(lambda: not file.waiting and file.trouble is None)
    assert len(loaded(path)) == 40
    full(kind, other)
    with closing(FailureFile(Path(folder, "new.db"), KeptRun)) as file:
        assert file.trouble is not None
        assert file.loaded == []
        file.put("1", kept(1))
        roomy(kind, other)
        eventually(lambda: not file.waiting and file.trouble is None)
    assert loaded(Path(folder, "new.db")) == ["1"]


def full(kind: str, other: Path) -> None:
    """Leave no room on the disk, or no file any."""
    if kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return
    with other.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def roomy(kind: str, other: Path) -> None:
    """Make room again."""
    if kind == "limit":
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    else:
        os.unlink(other)  # noqa: PTH108


if __name__ == "__main__":
    main(*sys.argv[1:])
