"""How long searches and cached lists take while 1,000 templates are indexed, by checkout and interval, in turns.

    python -m tests.benchmarks.beside_indexing FOLDER [--rounds 5] [--callers 1] [--intervals 0.1,1,5] [TREE ...]

FOLDER keeps the library from one run to the next. Each round serves it once for each interval, in milliseconds, after
which threads hand over the interpreter lock (`sys.setswitchinterval`), and once by each other checkout as it is; then
changes 1,000 templates in one transaction, while callers search for what is in no cache and another one asks for one
list. Counted from the change until all are found. Linux only.
"""

import argparse
import statistics
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from time import monotonic

from template_api.library import import_templates
from tests.benchmarks.search_index import CHANGED, Served, change
from tests.benchmarks.template_api import lines

HERE = Path(__file__).parents[2]
PROGRAM = """
import sys
from template_api.serving import service
if float(sys.argv[1]):
    service._SWITCH_SECONDS = float(sys.argv[1]) / 1000
from template_api.cli import main
sys.exit(main(sys.argv[2:]))
"""


@contextmanager
def served(folder: Path, tree: Path, interval: float) -> Iterator[Served]:
    """Serve the library of a folder by a checkout, with an interval in milliseconds; 0 is its own."""
    api = Served(folder, ["-c", PROGRAM, str(interval)], tree)
    try:
        api.seconds_to_first_search()
        yield api
    finally:
        api.process.terminate()
        api.process.wait()


def measured(folder: Path, api: Served, callers: int) -> tuple[float, list[float], list[float]]:
    """Change templates; return the seconds until all are found, and the times of searches and lists meanwhile."""
    word, ended = f"one{uuid.uuid4().hex[:6]}", threading.Event()
    searches, listed = list[float](), list[float]()

    def ask() -> None:
        with closing(api.connected()) as connection:
            while not ended.is_set():
                began = monotonic()
                connection.request("GET", "/api/templates", headers={"Accept-Encoding": "gzip"})
                connection.getresponse().read()
                listed.append((monotonic() - began) * 1000)

    def search() -> None:
        with closing(api.connected()) as connection:
            searches.extend(api.times(connection, ended))

    with closing(api.connected()) as other, ProcessPoolExecutor(1) as elsewhere:
        elsewhere.submit(int).result()  # the process has started
        asking = [threading.Thread(target=act) for act in (ask, *[search] * callers)]
        for caller in asking:
            caller.start()
        elsewhere.submit(change, folder, word).result()
        began = monotonic()
        while api.search(other, word) != CHANGED:
            threading.Event().wait(0.05)
        seconds = monotonic() - began
        ended.set()
        for caller in asking:
            caller.join()
    return seconds, searches, listed


def main(folder: Path, templates: int, rounds: int, callers: int, settings: list[tuple[str, Path, float]]) -> None:
    """Import, serve in turns, print."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "library.db").exists():
        file = folder / "library.jsonl"
        with file.open("w") as written:
            written.writelines(line + "\n" for line in lines(templates, 300))
        import_templates(f"sqlite:///{folder}/library.db", file)
    for _, tree, interval in settings:
        with served(folder, tree, interval):
            pass  # the first one of a format builds its index
    found = defaultdict[str, list[tuple[float, list[float], list[float]]]](list)
    for number in range(rounds):
        for name, tree, interval in settings if number % 2 else reversed(settings):
            with served(folder, tree, interval) as api:
                found[name].append(measured(folder, api, callers))
    for name, _, _ in settings:
        seconds, searches, listed = zip(*found[name], strict=True)
        print(f"{name:<32} found after {statistics.median(seconds):5.2f} s", end="", flush=True)
        for kind, several in (("searches", searches), ("cached lists", listed)):
            times = sorted(chain.from_iterable(several))
            p50, p99 = statistics.median(times), times[len(times) * 99 // 100]
            print(f"; {len(times):6} {kind}, p50 {p50:6.2f} ms, p99 {p99:6.1f} ms", end="", flush=True)
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--templates", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, default=1, help="that search")
    parser.add_argument("--intervals", default="0.1,1,5")
    given = parser.parse_args()
    ours = [(f"{each} ms", HERE, float(each)) for each in given.intervals.split(",") if each]
    others = [(tree.name, tree.absolute(), 0.0) for tree in given.trees]
    main(given.folder, given.templates, given.rounds, given.callers, [*ours, *others])
