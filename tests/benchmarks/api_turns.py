"""What a request to the template API costs in two checkouts, in turns: list, read, cached and new search, POST.

    python -m tests.benchmarks.api_turns TREE [rounds [templates]]

TREE is the other checkout, such as `git worktree add /tmp/old 493b0165` makes; both run with this Python. Each library
has the same synthetic templates; all answers are compressed. Prints medians of the rounds, with 16 and with 64 callers:
requests/s, the server's processor time for a request, and both as a share of TREE's. New searches have three words, one
of them misspelt, in an order of each run. Linux only; needs wrk.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from time import monotonic
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from tests.benchmarks.ranking import Texts
from tests.benchmarks.template_api import SECONDS, lines
from tests.support.ports import free_port

HERE = Path(__file__).parents[2]
TEXT = Texts(seed=3).query(3, 1)
POST = f"""
wrk.method = "POST"
wrk.body = '{{"query": "{TEXT}", "limit": 10}}'
wrk.headers["Content-Type"] = "application/json"
"""
CALLERS = (16, 64)
NEW = """
local words = {%s}
local at = tonumber(os.time()) * 7919
request = function()
    at = at + 1
    local text = words[at %% #words + 1] .. "+" .. words[at * 31 %% #words + 1] .. "+" .. words[at * 17 %% #words + 1]
    return wrk.format("GET", "/api/search?limit=10&q=" .. text .. "x")
end
"""


class Served:
    """The API of a checkout, in a process of its own."""

    def __init__(self, tree: Path, folder: Path, library: Path) -> None:
        self.port = free_port()
        self._log = folder / "log"
        environment = {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(folder)}
        command = [sys.executable, "-m", "template_api"]
        url = ["--database-url", f"sqlite:///{folder}/library.db"]
        subprocess.run([*command, "import", str(library), "--quiet", *url], cwd=tree, env=environment, check=True)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "serve", "--port", str(self.port), *url], cwd=tree, env=environment, stdout=log, stderr=log
            )
        while not self._searches():
            assert self.process.poll() is None, self._log.read_text()

    def _searches(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/search?q=a", timeout=10) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def cost(self, callers: int, path: str, *options: str) -> tuple[float, float]:
        """Return requests/s, and the microseconds of processor time for each."""
        command = ["wrk", "-t1", f"-c{callers}", f"-d{SECONDS}", "-H", "Accept-Encoding: gzip", *options]
        before, began = self._processor_seconds(), monotonic()
        ran = subprocess.run([*command, f"http://127.0.0.1:{self.port}{path}"], capture_output=True, text=True)
        seconds = monotonic() - began
        found = re.search(r"(\d+) requests in", ran.stdout)
        requests = int(found[1]) if found and "Non-2xx" not in ran.stdout else 0
        # A server that died, or answers nothing in time, has no cost.
        assert requests and self.process.poll() is None, f"{ran.stdout}{ran.stderr}\n{self._log.read_text()}"
        return requests / seconds, (self._processor_seconds() - before) / requests * 1e6

    def _processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(tree: Path, library: Path) -> Iterator[Served]:
    """Serve a library by a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        api = Served(tree, Path(folder), library)
        try:
            yield api
        finally:
            api.process.terminate()
            api.process.wait()


def main(tree: Path, rounds: int = 5, templates: int = 2000) -> None:
    """Import, serve, ask in turns, print."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        library, script = folder / "library.jsonl", folder / "post.lua"
        library.write_text("".join(line + "\n" for line in lines(templates, 250)))
        script.write_text(POST)
        new = folder / "new.lua"
        new.write_text(NEW % ", ".join(f'"{word}"' for word in Texts(seed=5).content_words[:20_000]))
        both = [opened.enter_context(served(each, library)) for each in (HERE, tree.absolute())]
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
                    costs[which].append(both[which].cost(callers, path, *options))
            rate, cost = map(statistics.median, zip(*costs[0], strict=True))
            old_rate, old_cost = map(statistics.median, zip(*costs[1], strict=True))
            # Some sandboxes count no processor time.
            share = f"{cost / old_cost:.3f}" if old_cost else "not measurable"
            shown = f"{rate:8.0f} /s ({rate / old_rate:.3f}){cost:8.1f} us of processor time ({share})"
            print(f"{name}, {callers} callers".ljust(36) + shown, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
