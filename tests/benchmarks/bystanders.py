"""How long other clients' messages take while the bridge is busy, in one or several checkouts in turns.

    python -m tests.benchmarks.bystanders [--rounds 5] [--seconds 5] [--load NAME ...] [TREE ...]

Two clients send a message there and back, a hundred times a second, beside one of the loads: 64 messages of client mode
under way; 16 or 64 connections that post to server mode; 6,000 messages of client mode at once; four clients that send
messages to a fifth, 250 at a time. TREE is another checkout, such as `git worktree add /tmp/old 493b0165` makes; all
run with this Python.

Prints the pair's round trips of all rounds (p50, p99, the longest), and medians of the rounds: messages or requests/s,
and the processor time of one in the broker and in its bridge process. Payloads of 100 bytes. Linux only; needs wrk.
"""

import argparse
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import client_mode, rig, server_mode
from tests.benchmarks.client_mode import counting, load, result
from tests.support.ports import free_port

HERE: Final = Path(__file__).parents[2]
FLOOD: Final = 6_000
SENDERS: Final = 4


def window(tree: Path, seconds: int) -> dict[str, Any]:
    """Keep 64 messages of client mode under way."""
    return messages(tree, seconds, "window", client_mode.OUTSTANDING)


def flood(tree: Path, seconds: int) -> dict[str, Any]:
    """Send 6,000 messages of client mode at once, and again when all have their results."""
    return messages(tree, seconds, "flood", FLOOD)


def clients(tree: Path, seconds: int) -> dict[str, Any]:
    """Send from four clients to a fifth."""
    return messages(tree, seconds, "clients", SENDERS)


def messages(tree: Path, seconds: float, mode: str, count: int) -> dict[str, Any]:
    """Load a broker with a route of client mode beside the pair."""
    with rig.echo_server() as target, rig.bridge_broker(client_mode.route(target), tree=tree) as (port, broker):
        processes = Processes(broker.pid)
        sender, pair = load(mode, port, seconds, count), load("pair", port, seconds)
        measured = result(sender)
        wrong = measured["lost"] + measured["doubled"] + measured["failed"]
        trips = result(pair)["trips"]
        return {"rate": measured["per_second"], "trips": trips, "wrong": wrong, **processes.used(measured["sent"])}


def connections(count: int) -> Callable[[Path, int], dict[str, Any]]:
    """Return the load of so many connections that post to server mode."""

    def posts(tree: Path, seconds: int) -> dict[str, Any]:
        http = free_port()
        with rig.bridge_broker(server_mode.route(http), tree=tree) as (port, broker):
            subscriber = counting(port, seconds + 2)
            processes, pair = Processes(broker.pid), load("pair", port, seconds)
            measured = server_mode.wrk(http, count, seconds)
            used = processes.used(measured["requests"])
            wrong = max(0, measured["requests"] - measured["errors"] - result(subscriber)["received"])
            trips = result(pair)["trips"]
            return {"rate": measured["per_second"], "trips": trips, "wrong": measured["errors"] + wrong, **used}

    return posts


class Processes:
    """The processor time of a broker and of its bridge processes, from now on."""

    def __init__(self, broker: int) -> None:
        self._pids = [broker, *rig.children(broker)]
        self._before = self._seconds()

    def used(self, count: float) -> dict[str, float]:
        """Return the microseconds for each of so many messages."""
        broker, *bridges = (now - then for now, then in zip(self._seconds(), self._before, strict=True))
        return {"broker": broker / count * 1e6, "bridge": sum(bridges) / count * 1e6}

    def _seconds(self) -> list[float]:
        return [rig.cpu_seconds(pid) for pid in self._pids]


LOADS: Final[dict[str, Callable[[Path, int], dict[str, Any]]]] = {
    "window": window,
    "16": connections(16),
    "64": connections(64),
    "flood": flood,
    "clients": clients,
}


def main(trees: list[Path], loads: list[str], rounds: int, seconds: int) -> None:
    """Measure in turns, print."""
    header = f"{'load':<8}{'checkout':<14}{'p50':>8}{'p99':>8}{'max':>8} ms{'messages/s':>12}"
    print(f"{header}{'broker':>9}{'bridge':>9}{'both':>9} us{'lost':>7}", flush=True)
    for name in loads:
        found = defaultdict[Path, list[dict[str, Any]]](list)
        for number in range(rounds):
            for tree in trees if number % 2 else reversed(trees):
                found[tree].append(LOADS[name](tree, seconds))
        for tree in trees:
            runs = found[tree]
            trips = list(chain.from_iterable(run["trips"] for run in runs))
            times = (rig.quantile(trips, 0.5), rig.quantile(trips, 0.99), max(trips))
            rate, broker, bridge = (rig.median([run[key] for run in runs]) for key in ("rate", "broker", "bridge"))
            line = f"{name:<8}{tree.name:<14}" + "".join(f"{time:8.1f}" for time in times) + f"{rate:15.0f}"
            line += f"{broker:9.0f}{bridge:9.0f}{broker + bridge:9.0f}{sum(run['wrong'] for run in runs):10.0f}"
            print(line, flush=True)


if __name__ == "__main__":
    if shutil.which("wrk") is None:
        sys.exit("this benchmark needs wrk: apt-get install wrk")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="other checkouts")
    parser.add_argument("--rounds", type=int, default=5, help="of each load (default 5)")
    parser.add_argument("--seconds", type=int, default=5, help="of each round (default 5)")
    parser.add_argument("--load", action="append", choices=LOADS, help="these alone (default all)")
    given = parser.parse_args()
    others = [tree.absolute() for tree in given.trees]
    main([HERE, *others], given.load or list(LOADS), given.rounds, given.seconds)
