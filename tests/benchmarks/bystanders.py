"""How long other clients' messages take while the bridge is busy, in one or several checkouts in turns.

    python -m tests.benchmarks.bystanders [--rounds 5] [--seconds 5] [--load NAME ...] [TREE ...]

Two clients send a message there and back, a hundred times a second, beside one of the loads:

- `window`: 64 messages of client mode under way; `slow`: before a server of 50 ms;
- `16`, `64`: so many connections that post to server mode;
- `flood`: 6,000 messages of client mode at once, again and again; `hung`: 20,000 to a server that hangs, then answers;
- `large`: ten JSON messages of 4 MB, of which the request has one field;
- `reload`: the file of 1,000 routes is rewritten and loaded once a second;
- `401`: 256 connections of server mode that repeat a request without credentials;
- `clients`: four clients that send messages to a fifth, 250 at a time.

TREE is another checkout, such as `git worktree add /tmp/old 493b0165` makes; all run with this Python. `bare` is amqtt
without the bridge, which relays as many messages a second as the first checkout did.

Prints the pair's round trips of all rounds (p50, p99, the longest), and medians of the rounds: messages or requests/s,
and the processor time of one in the broker and in its bridge process. Payloads of 100 bytes. Linux only; needs wrk.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import rig
from tests.benchmarks.rig import counting, load, result
from tests.support.ports import free_port

HERE: Final = Path(__file__).parents[2]
FLOOD: Final = 6_000
BACKLOG: Final = 20_000
SENDERS: Final = 4
ROUTES: Final = 1_000
CALLERS: Final = 256
Measured = dict[str, Any]
"""What a round found: `rate` (messages/s), `trips` (ms), `wrong` (lost or refused), `broker` and `bridge` (us)."""


def messages(
    mode: str, count: int, delay: float = 0.0, hangs: float = 0.0, body: str = "{payload}", once: bool = False
) -> Callable[[Path, int], Measured]:
    """Return a load of client mode, or of clients among themselves, as `tests.benchmarks.load` has it.

    Its server answers after `delay` seconds, and hangs for `hangs` seconds at first.
    """

    def send(tree: Path, seconds: int) -> Measured:
        with rig.echo_server(delay, hangs=hangs) as target:
            route = rig.client_route(target).replace("{payload}", body)
            with rig.bridge_broker(route, tree=tree) as (port, broker):
                processes = Processes(broker.pid)
                sender, pair = load(mode, port, 0 if once else seconds, count), load("pair", port, seconds)
                measured = result(sender)
                return found(measured["per_second"], pair, failures(measured), processes.used(measured["sent"]))

    return send


def reload(tree: Path, seconds: int) -> Measured:
    """Rewrite the file of 1,000 routes and load it, once a second."""
    with tempfile.TemporaryDirectory() as folder, rig.echo_server() as target:
        text = "".join(rig.client_route(target, f"R{number}", f"in/{number}") for number in range(ROUTES))
        path = Path(folder, "more.lot")
        path.write_text(text)
        with rig.broker({rig.BRIDGE: {"routes": folder, "reload_seconds": 0}}, tree=tree) as (port, broker):
            processes, pair = Processes(broker.pid), load("pair", port, seconds)
            for number in range(seconds):
                path.write_text(text.replace("in/7", f"in/7/{number}"))
                broker.send_signal(signal.SIGHUP)
                time.sleep(1.0)
            return found(1.0, pair, 0, processes.used(seconds))


def posts(connections: int) -> Callable[[Path, int], Measured]:
    """Return the load of so many connections that post to server mode."""

    def post(tree: Path, seconds: int) -> Measured:
        http = free_port()
        with rig.bridge_broker(rig.server_route(http), tree=tree) as (port, broker):
            subscriber = counting(port, seconds + 2)
            processes, pair = Processes(broker.pid), load("pair", port, seconds)
            measured = rig.wrk(f"http://127.0.0.1:{http}/hook", connections, seconds)
            used = processes.used(measured["requests"])
            lost = max(0, measured["requests"] - measured["errors"] - result(subscriber)["received"])
            return found(measured["per_second"], pair, measured["errors"] + lost, used)

    return post


def refused(tree: Path, seconds: int) -> Measured:
    """Repeat a request without credentials over 256 connections; all answers are 401."""
    http = free_port()
    route = rig.server_route(http).replace('"true"', '"true" WITH SERVER_TOKEN "token"')
    with rig.bridge_broker(route, tree=tree) as (port, broker):
        processes, pair = Processes(broker.pid), load("pair", port, seconds)
        measured = rig.wrk(f"http://127.0.0.1:{http}/hook", CALLERS, seconds)
        wrong = measured["requests"] - measured["errors"]
        return found(measured["per_second"], pair, wrong, processes.used(measured["requests"]))


def bare(rate: float, seconds: int) -> Measured:
    """Relay so many messages a second by amqtt alone."""
    with rig.broker({}) as (port, broker):
        processes = Processes(broker.pid)
        sender, pair = load("relay", port, seconds, rate), load("pair", port, seconds)
        measured = result(sender)
        return found(measured["per_second"], pair, 0, processes.used(measured["sent"]))


def found(rate: float, pair: subprocess.Popen[str], wrong: float, used: dict[str, float]) -> Measured:
    """Return what a round found, once the pair has ended."""
    return {"rate": rate, "trips": result(pair)["trips"], "wrong": wrong, **used}


def failures(measured: dict[str, Any]) -> int:
    """Return the messages without a result, with two, or with a failure."""
    return int(measured["lost"] + measured["doubled"] + measured["failed"])


class Processes:
    """The processor time of a broker and of its bridge process, from now on."""

    def __init__(self, broker: int) -> None:
        # A process that loads route files may end meanwhile.
        self._before = {pid: rig.cpu_seconds(pid) for pid in (broker, *rig.children(broker))}
        self._broker = broker

    def used(self, count: float) -> dict[str, float]:
        """Return the microseconds for each of so many messages."""
        used = {pid: rig.cpu_seconds(pid) - self._before[pid] for pid in self._before if Path(f"/proc/{pid}").exists()}
        broker = used.pop(self._broker)
        return {"broker": broker / count * 1e6, "bridge": sum(used.values()) / count * 1e6}


LOADS: Final[dict[str, Callable[[Path, int], Measured]]] = {
    "window": messages("window", rig.OUTSTANDING),
    "slow": messages("window", rig.OUTSTANDING, rig.SLOW),
    "16": posts(16),
    "64": posts(64),
    "flood": messages("flood", FLOOD),
    "hung": messages("flood", BACKLOG, hangs=1.0, once=True),
    "large": messages("large", 10, body="{value.json.wanted}"),
    "reload": reload,
    "401": refused,
    "clients": messages("clients", SENDERS),
}
UNPUBLISHED: Final = ("reload", "401")
"""Loads that publish nothing: amqtt alone has only the pair."""


def main(trees: list[Path], loads: list[str], rounds: int, seconds: int) -> None:
    """Measure in turns, print."""
    header = f"{'load':<8}{'checkout':<14}{'p50':>8}{'p99':>8}{'max':>8} ms{'messages/s':>12}"
    print(f"{header}{'broker':>9}{'bridge':>9}{'both':>9} us{'lost':>7}", flush=True)
    for name in loads:
        runs = defaultdict[str, list[Measured]](list)
        for number in range(rounds):
            for tree in trees if number % 2 else reversed(trees):
                runs[tree.name].append(LOADS[name](tree, seconds))
            rate = rig.median([run["rate"] for run in runs[trees[0].name]])
            runs["bare"].append(bare(1.0 if name in UNPUBLISHED else rate, seconds))
        for checkout in (*(tree.name for tree in trees), "bare"):
            print_row(name, checkout, runs[checkout])


def print_row(name: str, checkout: str, runs: list[Measured]) -> None:
    """Print a line of the table."""
    trips = list(chain.from_iterable(run["trips"] for run in runs))
    times = (rig.quantile(trips, 0.5), rig.quantile(trips, 0.99), max(trips))
    rate, broker, bridge = (rig.median([run[key] for run in runs]) for key in ("rate", "broker", "bridge"))
    line = f"{name:<8}{checkout:<14}" + "".join(f"{time:8.1f}" for time in times) + f"{rate:15.0f}"
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
