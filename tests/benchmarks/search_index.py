"""What the search index costs a served library: start, memory, searches, changes of 1,000 templates.

    python -m tests.benchmarks.search_index FOLDER [templates [words of content]]

FOLDER keeps the library from one run to the next; the first run imports it. Linux only. Searches have three words,
one of them misspelt; no two are the same.
"""

import http.client
import itertools
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from template_api.library import import_templates
from tests.benchmarks.ranking import Texts
from tests.benchmarks.template_api import lines, row
from tests.support.ports import free_port

STARTS, SEARCHES, CHANGED = 5, 400, 1000


class Served:
    """A process that serves the library of a folder."""

    def __init__(self, folder: Path, program: Sequence[str] = ("-m", "template_api"), tree: Path | None = None) -> None:
        self.port = free_port()
        self.began = monotonic()
        command = [sys.executable, *program, "serve", "--port", str(self.port)]
        command += ["--database-url", f"sqlite:///{folder.absolute()}/library.db"]
        self.log = folder / "log"
        environment = {**os.environ, **({"PYTHONPATH": str(tree)} if tree is not None else {})}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tree, env=environment)
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

    def processor_seconds(self) -> float:
        """Return the processor time that the process has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connected(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def search(self, connection: http.client.HTTPConnection, text: str = "") -> int | None:
        """Return how many templates a search finds, None when there is no index to search in."""
        connection.request("GET", f"/api/search?limit=20&q={quote(text or self._texts.query(3, 1))}")
        answer = connection.getresponse()
        answer.read()
        return int(answer.headers["X-Total-Count"]) if answer.status == 200 else None

    def times(self, connection: http.client.HTTPConnection, ended: threading.Event) -> Iterator[float]:
        """Search until `ended`; yield the milliseconds of each search."""
        while not ended.is_set():
            began = monotonic()
            self.search(connection)
            yield (monotonic() - began) * 1000

    def memory(self) -> str:
        """Return the process's memory: all, its own, mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = {name: int(size) / 1024 for name, size in re.findall(r"(\w+):\s+(\d+) kB", status)}
        return f"{found['VmRSS']:4.0f} MB, {found['RssAnon']:.0f} of its own, {found['RssFile']:.0f} mapped files"


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve the library of a folder."""
    process = Served(folder)
    try:
        yield process
    finally:
        process.process.terminate()
        process.process.wait()


def change(folder: Path, word: str) -> None:
    """Add a word to the titles of 1,000 templates, as the index takes them too, in one transaction."""
    with closing(sqlite3.connect(folder / "library.db", timeout=30)) as connection, connection:
        version = connection.execute("UPDATE library SET version = version + ? RETURNING version", [CHANGED])
        last = version.fetchone()[0]
        rows = connection.execute("SELECT id, prepared FROM templates ORDER BY digest LIMIT ?", [CHANGED]).fetchall()
        changed = []
        for number, (id_, texts) in enumerate(reversed(rows)):
            title, text, *others = json.loads(texts)
            changed.append((f" {word}", json.dumps([title, f"{text} {word}", *others]), last - number, id_))
        update = "UPDATE templates SET title = title || ?, prepared = ?, changed = ? WHERE id = ?"
        connection.executemany(update, changed)


def imported(folder: Path, word: str) -> None:
    """Import 1,000 templates that are new, with a word in the titles, by the command."""
    file = folder / "changed.jsonl"
    made = [json.loads(line) for line in itertools.islice(lines(CHANGED + 4, 300), 4, None)]
    named = [{**each, "slug": f"new-{each['slug']}", "title": f"{each['title']} {word}"} for each in made]
    file.write_text("".join(json.dumps(each) + "\n" for each in named))
    command = [sys.executable, "-m", "template_api", "import", str(file), "--quiet"]
    subprocess.run([*command, "--database-url", f"sqlite:///{folder}/library.db"], check=True)


def measured_change(folder: Path, api: Served, name: str, act: Callable[[Path, str], None]) -> None:
    """Change templates in another process; time when all are found, and searches from a second before until then."""
    word, ended, taken = f"{name[:3]}{uuid.uuid4().hex[:6]}", threading.Event(), list[float]()
    with closing(api.connected()) as connection, closing(api.connected()) as other, ProcessPoolExecutor(1) as elsewhere:
        elsewhere.submit(int).result()  # the process has started
        searching = threading.Thread(target=lambda: taken.extend(api.times(connection, ended)))
        searching.start()
        threading.Event().wait(1)
        elsewhere.submit(act, folder, word).result()
        began = monotonic()
        while api.search(other, word) != CHANGED:
            threading.Event().wait(0.05)
        seconds = monotonic() - began
        ended.set()
        searching.join()
    row(f"1,000 by {name}: all found after {seconds:.2f} s; searches", sorted(taken))


def main(folder: Path, count: int = 10_000, words: int = 300) -> None:
    """Import, build, start, search, change, print."""
    folder.mkdir(parents=True, exist_ok=True)
    url, file = f"sqlite:///{folder}/library.db", folder / "library.jsonl"
    if not (folder / "library.db").exists():
        with file.open("w") as written:
            written.writelines(line + "\n" for line in lines(count, words))
        import_templates(url, file)
    starts = []
    for _ in range(STARTS):
        with served(folder) as api:
            starts.append((api.seconds_to_first_search(), api.processor_seconds()))
    seconds, cost = map(statistics.median, zip(*starts, strict=True))
    print(f"{'start to the first answered search':<58}{seconds:9.2f} s, {cost:.2f} s of processor time")
    with served(folder) as api:
        api.seconds_to_first_search()
        print(f"{'memory after the first search':<58}{api.memory()}")
        with closing(api.connected()) as connection:
            times = api.times(connection, threading.Event())
            row("search", sorted(itertools.islice(times, SEARCHES)))
        print(f"{f'memory after {SEARCHES} searches':<58}{api.memory()}")
        for name, act in (("one transaction", change), ("the command `import`", imported)):
            for _ in range(3):
                measured_change(folder, api, name, act)
        print(f"{'memory after these changes':<58}{api.memory()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
