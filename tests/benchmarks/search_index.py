"""What the search index costs a served library: start, memory, searches, changes of 1,000 templates.

    python -m tests.benchmarks.search_index FOLDER [templates [words of content]]

FOLDER keeps the library from one run to the next; the first run imports it. Linux only. Searches have three words,
one of them misspelt; no two are the same.
"""

import http.client
import itertools
import json
import sqlite3
import statistics
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic

from tests.benchmarks.served_library import Served, import_file, lines, row, served

HERE = Path(__file__).parents[2]
STARTS, SEARCHES, CHANGED = 5, 400, 1000


def search_times(api: Served, connection: http.client.HTTPConnection, ended: threading.Event) -> Iterator[float]:
    """Search until `ended`; yield the milliseconds of each search."""
    while not ended.is_set():
        began = monotonic()
        api.search(connection)
        yield (monotonic() - began) * 1000


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
    import_file(HERE, folder, file)


def measured_change(folder: Path, api: Served, name: str, act: Callable[[Path, str], None]) -> None:
    """Change templates in another process; time when all are found, and searches from a second before until then."""
    word, ended, taken = f"{name[:3]}{uuid.uuid4().hex[:6]}", threading.Event(), list[float]()
    with closing(api.connected()) as connection, closing(api.connected()) as other, ProcessPoolExecutor(1) as elsewhere:
        elsewhere.submit(int).result()  # the process has started
        searching = threading.Thread(target=lambda: taken.extend(search_times(api, connection, ended)))
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
    file = folder / "library.jsonl"
    if not (folder / "library.db").exists():
        with file.open("w") as written:
            written.writelines(line + "\n" for line in lines(count, words))
        import_file(HERE, folder, file)
    starts = []
    for _ in range(STARTS):
        with served(HERE, folder) as api:
            starts.append((api.seconds_to_first_search(), api.processor_seconds()))
    seconds, cost = map(statistics.median, zip(*starts, strict=True))
    print(f"{'start to the first answered search':<58}{seconds:9.2f} s, {cost:.2f} s of processor time")
    with served(HERE, folder) as api:
        api.seconds_to_first_search()
        print(f"{'memory after the first search':<58}{api.memory()}")
        with closing(api.connected()) as connection:
            times = search_times(api, connection, threading.Event())
            row("search", sorted(itertools.islice(times, SEARCHES)))
        print(f"{f'memory after {SEARCHES} searches':<58}{api.memory()}")
        for name, act in (("one transaction", change), ("the command `import`", imported)):
            for _ in range(3):
                measured_change(folder, api, name, act)
        print(f"{'memory after these changes':<58}{api.memory()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
