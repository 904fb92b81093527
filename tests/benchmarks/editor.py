"""The language server: from a keystroke to fresh diagnostics, in a text of a thousand lines.

    python -m tests.benchmarks.editor [LINES]

Prints the median, the 95th percentile and the maximum of 300 keystrokes, as processor time of the server's process, and
what `rest-bridge check` takes, which reads the whole text.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.sources import Source
from tests.benchmarks.language import ROUTE
from tests.support.lsp_client import LspClient

KEYSTROKES = 300


def processor_seconds(pid: int) -> float:
    """Return what all threads of a process have taken, in nanoseconds' precision where the system counts them."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(thread.joinpath("schedstat").read_text().split()[0]) for thread in threads) / 1e9


def typed(text: str, chance: random.Random) -> str:
    """Press a key somewhere: a letter, a quote, a new line, or backspace."""
    at = chance.randrange(len(text))
    return chance.choice([text[:at] + chance.choice('abc "\n{') + text[at:], text[:at] + text[at + 1 :]])


def measure(lines: int) -> list[float]:
    """Return the processor time of each keystroke; each is taken back after it."""
    length = ROUTE.count("\n")
    text = "".join(ROUTE.format(number=number) for number in range(-(-lines // length)))
    chance = random.Random(27)
    with tempfile.TemporaryDirectory() as folder:
        client = LspClient(Path(folder))
        uri = Path(folder, "a.lot").as_uri()
        client.open(uri, text)
        taken = []
        for version in range(2, KEYSTROKES + 2):
            # A text goes wrong and is mended, as while it is typed.
            now = typed(text, chance) if version % 2 == 0 else text
            before = processor_seconds(client.process.pid)
            client.change(uri, version, now)
            client.diagnostics(uri, version)
            taken.append(processor_seconds(client.process.pid) - before)
        client.end()
    started = time.process_time()
    load([Source("a.lot", text)], Environment({}, Path("/nowhere")))
    print(f"{text.count(chr(10))} lines; read whole: {1000 * (time.process_time() - started):.0f} ms")
    return taken


def main() -> None:
    """Print the figures."""
    taken = sorted(1000 * seconds for seconds in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
    p95 = taken[int(0.95 * len(taken))]
    print(f"a keystroke: median {statistics.median(taken):.1f} ms, p95 {p95:.1f} ms, maximum {taken[-1]:.1f} ms")


if __name__ == "__main__":
    main()
