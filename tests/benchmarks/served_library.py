"""A served library of synthetic templates, which the benchmarks of the template API share."""

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from tests.benchmarks import rig
from tests.benchmarks.ranking import Texts
from tests.support.ports import free_port


def lines(count: int, words: int) -> Iterator[str]:
    """Yield synthetic templates as lines of a .jsonl file."""
    texts = Texts()
    difficulties = ("beginner", "intermediate", "advanced")
    for number in range(count):
        document = texts.document(number, words)
        cells = [{"kind": 2, "language": "lot", "value": f"DEFINE ROUTE R WITH TYPE REST_API\n{document.cells}"}]
        yield json.dumps(
            {
                "slug": f"t-{number}",
                "status": "published",
                "title": document.title,
                "short_description": document.short_description,
                "content": document.content,
                "category": f"Category {number % 12}",
                "difficulty": difficulties[number % 3],
                "tags": document.labels.split()[:4],
                "broker_version": f"1.{number % 9}",
                "notebooks": [{"filename": "main.lotnb", "is_primary": True, "cells": cells}],
            }
        )


def row(name: str, times: Sequence[float]) -> None:
    """Print median and 99th percentile of sorted times."""
    print(f"{name:<58}{statistics.median(times):9.3f} ms p50{times[len(times) * 99 // 100]:9.3f} ms p99")


class Served:
    """The API of a checkout, in a process of its own, with the library of a folder."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.port = free_port()
        self.began = monotonic()
        self.log = folder / "log"
        command = [*program(folder, "serve"), "--port", str(self.port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tree, env=environment(tree, folder))
        self._texts = Texts(seed=self.port)

    def seconds_to_first_search(self) -> float:
        """Wait for the first answered search."""
        while True:
            try:
                with closing(self.connected()) as connection:
                    if self.search(connection) is not None:
                        return monotonic() - self.began
            except OSError:
                assert self.process.poll() is None, self.log.read_text()

    def connected(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def search(self, connection: http.client.HTTPConnection, text: str = "") -> int | None:
        """Return how many templates a search finds, None when there is no index to search in."""
        connection.request("GET", f"/api/search?limit=20&q={quote(text or self._texts.query(3, 1))}")
        answer = connection.getresponse()
        answer.read()
        return int(answer.headers["X-Total-Count"]) if answer.status == 200 else None

    def processor_seconds(self) -> float:
        """Return the processor time that the process has taken."""
        return rig.cpu_seconds(self.process.pid)

    def memory(self) -> str:
        """Return the process's memory: all, its own, mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = {name: int(size) / 1024 for name, size in re.findall(r"(\w+):\s+(\d+) kB", status)}
        return f"{found['VmRSS']:4.0f} MB, {found['RssAnon']:.0f} of its own, {found['RssFile']:.0f} mapped files"


def program(folder: Path, command: str) -> list[str]:
    """Return a command for the library of a folder."""
    return [
        sys.executable,
        "-m",
        "template_api",
        command,
        "--database-url",
        f"sqlite:///{folder.absolute()}/library.db",
    ]


def environment(tree: Path, folder: Path) -> dict[str, str]:
    """Return the environment in which the program of a checkout runs."""
    return {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(folder.absolute())}


@contextmanager
def served(tree: Path, folder: Path) -> Iterator[Served]:
    """Serve the library of a folder by a checkout."""
    api = Served(tree, folder)
    try:
        yield api
    finally:
        api.process.terminate()
        api.process.wait()


def import_file(tree: Path, folder: Path, file: Path) -> None:
    """Import a file into the library of a folder by the command of a checkout."""
    command = [*program(folder, "import"), str(file.absolute()), "--quiet"]
    subprocess.run(command, cwd=tree, env=environment(tree, folder), check=True)
