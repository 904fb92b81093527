"""`template-api serve` in a process of its own, asked over its socket."""

import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.asking import Answered, ask
from tests.support.forked import TEMPLATE_API, Forked
from tests.support.library_store import check_answer


class Served:
    """A `template-api serve` process, asked over its socket."""

    def __init__(self, process: Forked, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answered:
        answer = ask(self.port, path, body, method=method, **(headers or {}))
        check_answer(method, path, answer.status, dict(answer.headers), answer.body)
        return answer

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answered:
        return self.ask("GET", path, None, headers)


@contextmanager
def serving(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
) -> Iterator[Served]:  # fmt: skip
    """Run `template-api serve` on a free port until the block ends."""
    log = folder / f"serve-{uuid.uuid4().hex}.log"
    process = Forked(
        TEMPLATE_API, ["serve", "--port", "0", *arguments], folder,
        environment={**os.environ, **(environment or {})}, constants=constants,
    )  # fmt: skip
    ready = threading.Event()
    reader = threading.Thread(target=_keep_log, args=(process, log, ready))
    reader.start()
    try:
        assert ready.wait(180), "the API did not start"
        address = log.read_text().partition(READY)[2].partition(",")[0]
        yield Served(process, int(address.rpartition(":")[2]), log)
    finally:
        process.terminate()
        process.wait(60)
        reader.join()


READY = "template API on http://"


def _keep_log(process: Forked, log: Path, ready: threading.Event) -> None:
    """Copy what the process writes to a file, and tell when it is ready or has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr, log.open("w") as kept:
        for line in process.stderr:
            kept.write(line)
            kept.flush()
            if READY in line:
                ready.set()
    ready.set()
