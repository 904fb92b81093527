"""What a request to the template API costs in two checkouts, in turns: list, read, cached and new search, POST.

    python -m tests.benchmarks.api_turns TREE [rounds [templates]]

TREE is the other checkout, such as `git worktree add /tmp/old 493b0165` makes; both run with this Python. Each library
has the same synthetic templates; all answers are compressed. Prints medians of the rounds, with 16 and with 64 callers:
requests/s, the server's processor time for a request, and both as a share of TREE's. New searches have three words, one
of them misspelt, in an order of each run. Linux only; needs wrk.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from urllib.parse import quote

from tests.benchmarks import rig
from tests.benchmarks.ranking import Texts
from tests.benchmarks.served_library import Served, import_file, lines, served

HERE = Path(__file__).parents[2]
TEXT = Texts(seed=3).query(3, 1)
POST = f"""
wrk.method = "POST"
wrk.body = '{{"query": "{TEXT}", "limit": 10}}'
wrk.headers["Content-Type"] = "application/json"
"""
CALLERS = (16, 64)
SECONDS = 2
NEW = """
local words = {%s}
local at = tonumber(os.time()) * 7919
request = function()
    at = at + 1
    local text = words[at %% #words + 1] .. "+" .. words[at * 31 %% #words + 1] .. "+" .. words[at * 17 %% #words + 1]
    return wrk.format("GET", "/api/search?limit=10&q=" .. text .. "x")
end
"""


def cost(api: Served, callers: int, path: str, *options: str) -> tuple[float, float]:
    """Return requests/s, and the microseconds of processor time for each."""
    before, url = api.processor_seconds(), f"http://127.0.0.1:{api.port}{path}"
    measured = rig.wrk(url, callers, SECONDS, "-H", "Accept-Encoding: gzip", *options)
    # A server that died, or answers nothing in time, has no cost.
    assert measured["requests"] and not measured["errors"], api.log.read_text()
    return measured["per_second"], (api.processor_seconds() - before) / measured["requests"] * 1e6


@contextmanager
def imported(tree: Path, file: Path) -> Iterator[Served]:
    """Serve a library of a file by a checkout, once it answers searches."""
    with tempfile.TemporaryDirectory() as folder:
        import_file(tree, Path(folder), file)
        with served(tree, Path(folder)) as api:
            api.seconds_to_first_search()
            yield api


def main(tree: Path, rounds: int = 5, templates: int = 2000) -> None:
    """Import, serve, ask in turns, print."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        file, script = folder / "library.jsonl", folder / "post.lua"
        file.write_text("".join(line + "\n" for line in lines(templates, 250)))
        script.write_text(POST)
        new = folder / "new.lua"
        new.write_text(NEW % ", ".join(f'"{word}"' for word in Texts(seed=5).content_words[:20_000]))
        both = [opened.enter_context(imported(each, file)) for each in (HERE, tree.absolute())]
        rows = (
            ("list of 20", "/api/templates", ()),
            ("read", "/api/templates/t-1", ()),
            ("cached search", f"/api/search?q={quote(TEXT)}&limit=10", ()),
            ("new search", "/", ("-s", str(new))),
            ("POST, the same search", "/api/search", ("-s", str(script))),
        )
        for callers, (name, path, options) in product(CALLERS, rows):
            costs: tuple[list[tuple[float, float]], ...] = ([], [])
            for number in range(rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    costs[which].append(cost(both[which], callers, path, *options))
            rate, used = map(statistics.median, zip(*costs[0], strict=True))
            old_rate, old_used = map(statistics.median, zip(*costs[1], strict=True))
            # Some sandboxes count no processor time.
            share = f"{used / old_used:.3f}" if old_used else "not measurable"
            shown = f"{rate:8.0f} /s ({rate / old_rate:.3f}){used:8.1f} us of processor time ({share})"
            print(f"{name}, {callers} callers".ljust(36) + shown, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
