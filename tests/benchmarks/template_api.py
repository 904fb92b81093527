"""What the template API costs: in process, over waitress beside an app of constant bytes, at start, in memory.

    python -m tests.benchmarks.template_api [templates [words of content]]

One command, one run, one table: 10,000 synthetic templates unless told otherwise. Rates are taken with 8 connections,
each beside the same server that answers constant bytes of the same size, so that the ratio says what the API costs
and the noise of the machine falls out. Needs `wrk` for the rates; without it they are left out.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import falcon.testing

from template_api.app import create_app
from template_api.library import TemplateLibrary, import_templates, set_status
from template_api.records import Status
from tests.benchmarks.ranking import Texts, resident
from tests.support.ports import free_port

CONNECTIONS, SECONDS = 8, 2
DRAFT = 3


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
                # One is a draft that has yet to get its date; the others are published by the import.
                "status": "draft" if number == DRAFT else "published",
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


def milliseconds(act: Callable[[Any], object], arguments: list[Any]) -> list[float]:
    """Return the time of each call, sorted."""
    times = []
    for argument in arguments:
        began = perf_counter()
        act(argument)
        times.append((perf_counter() - began) * 1000)
    return sorted(times)


def row(name: str, times: list[float]) -> None:
    """Print median and 99th percentile."""
    print(f"{name:<58}{statistics.median(times):9.3f} ms p50{times[len(times) * 99 // 100]:9.3f} ms p99")


def in_process(library: TemplateLibrary, count: int) -> None:
    """Time requests in process, through the application and Falcon's test client."""
    client = falcon.testing.TestClient(create_app(library))
    texts = Texts(seed=11)

    def ask(path: str) -> None:
        path, _, query = path.partition("?")
        assert client.simulate_get(path, query_string=query).status_code == 200

    floor = milliseconds(ask, ["/openapi.json"] * 300)
    row("constant bytes (the test client's own cost)", floor)
    row(
        "search, 3 words, one misspelt, cold cache",
        milliseconds(ask, [f"/api/search?q={quote(texts.query(3, 1))}" for _ in range(200)]),
    )
    row("search, the same, warm cache", milliseconds(ask, [f"/api/search?q={quote(texts.query(3, 1))}"] * 300))
    limits = [f"/api/templates?limit={limit}" for limit in range(1, 31)]
    row("list, cold cache", milliseconds(ask, limits))
    row("list of 20, warm cache", milliseconds(ask, ["/api/templates"] * 300))
    filtered = [f"/api/templates?difficulty=beginner&limit={limit}" for limit in range(1, 31)]
    row("list with a filter, cold cache", milliseconds(ask, filtered))
    row(
        "read, cold cache",
        milliseconds(ask, [f"/api/templates/t-{4 + number * 7 % (count - 4)}" for number in range(300)]),
    )
    row("read, warm cache", milliseconds(ask, ["/api/templates/t-1"] * 300))


class Process:
    """A server in a process of its own, asked until it answers."""

    def __init__(self, *command: str) -> None:
        self.port = free_port()
        began = monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not self._answers():
            assert self._process.poll() is None
        self.ready_seconds = monotonic() - began

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def megabytes(self) -> float:
        """Return the resident memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def rate(self, path: str) -> float:
        """Return requests a second with 8 connections."""
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", f"http://127.0.0.1:{self.port}{path}"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"Requests/sec:\s+([\d.]+)", ran.stdout)
        assert found and "Non-2xx" not in ran.stdout, ran.stdout
        return float(found[1])

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def over_waitress(api: Process) -> None:
    """Compare rates with an application of constant bytes on the same server, taken one after the other."""
    if shutil.which("wrk") is None:
        print("wrk is not installed: no rates")
        return
    for name, path in (
        ("search, warm cache", f"/api/search?q={quote(Texts(seed=3).query(3, 1))}&limit=10"),
        ("list of 20, warm cache", "/api/templates"),
        ("read, warm cache", "/api/templates/t-1"),
    ):
        with urlopen(f"http://127.0.0.1:{api.port}{path}") as answer:
            size = len(answer.read())
        constant = Process("tests.benchmarks.constant_bytes", "--size", str(size))
        rates = [(api.rate(path), constant.rate("/")) for _ in range(5)]
        constant.stop()
        ours, floor = (statistics.median(each) for each in zip(*rates, strict=True))
        print(f"{name + f', {size} bytes':<58}{ours:9.0f} /s; constant bytes {floor:7.0f} /s; ratio {ours / floor:.2f}")


def freshness(api: Process, url: str) -> None:
    """Time how long a change by another process takes to be seen by searches."""

    def listed() -> bool:
        return f'"t-{DRAFT}"'.encode() in urlopen(f"http://127.0.0.1:{api.port}/api/templates?limit=1").read()

    times = []
    for number in range(10):
        shown = number % 2 == 0
        set_status(url, f"t-{DRAFT}", Status.PUBLISHED if shown else Status.HIDDEN)
        began = monotonic()
        while listed() != shown:
            pass
        times.append((monotonic() - began) * 1000)
    row("a change by another process is seen after", sorted(times))


def main(count: int = 10_000, words: int = 250) -> None:
    """Import, ask, serve, print."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/library.db"
        file = Path(folder) / "library.jsonl"
        with file.open("w") as written:
            written.writelines(line + "\n" for line in lines(count, words))
        print(f"{count} templates of about {words} words, {file.stat().st_size / 1e6:.0f} MB as .jsonl")
        began = monotonic()
        import_templates(url, file)
        took = monotonic() - began
        print(f"{'import':<58}{took:9.1f} s, {count / took:.0f} templates/s")
        began = monotonic()
        import_templates(url, file)
        print(f"{'import again, nothing changed':<58}{monotonic() - began:9.1f} s")
        before = resident()
        began = monotonic()
        library = TemplateLibrary(url)
        print(f"{'library opened and indexed':<58}{monotonic() - began:9.2f} s, {resident() - before:.0f} MB more")
        in_process(library, count)
        library.close()
        empty = Process("template_api", "serve", "--database-url", f"sqlite:///{folder}/empty.db")
        api = Process("template_api", "serve", "--database-url", url)
        print(
            f"{'served process ready after':<58}{api.ready_seconds:9.2f} s (empty library {empty.ready_seconds:.2f} s)"
        )
        more = api.megabytes() - empty.megabytes()
        print(f"{'served process':<58}{api.megabytes():9.0f} MB, {more / count * 10000:.0f} MB for 10,000 templates")
        empty.stop()
        over_waitress(api)
        freshness(api, url)
        api.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
