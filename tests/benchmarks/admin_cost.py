"""What the admin port costs while nothing fails: processor time and rate with `admin_port` against those without.

    python -m tests.benchmarks.admin_cost [client] [server] [--pairs N]

Each pair (24 by default) is a fresh start of three brokers side by side, one with the port and two without, of which
the second shows by how much two starts of the same code differ: by up to 8 %, so that the ratio of four pairs may be
2 % off, and many starts say more than long turns. They are started in a random order and loaded in turns of a second,
so that all see the same machine, after a first turn that does not count. Processor time is that of broker and bridge
process together, by message. A turn in which a message is lost, refused or doubled raises: all have the same work.
"""

import os
import random
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.benchmarks import rig
from tests.benchmarks.client_mode import OUTSTANDING, counting, load, result
from tests.benchmarks.client_mode import route as client_route
from tests.benchmarks.server_mode import route as server_route
from tests.benchmarks.server_mode import wrk
from tests.support.ports import free_port

PAIRS = 24
TURNS = 3  # each side is first, second and third once: one that follows itself would be in cache
SECONDS = 1
CONNECTIONS = 16
IDLE_SECONDS = 1.0  # after which no message of a turn is under way any more

Load = Callable[[], tuple[float, float]]
"""Load a broker for a turn; returns messages, and messages a second."""


def client(stack: ExitStack, **settings: Any) -> tuple[int, Load]:
    """Start client mode; returns the broker's process and its load."""
    target = stack.enter_context(rig.echo_server())
    port, broker = stack.enter_context(rig.bridge_broker(client_route(target), **settings))

    def turn() -> tuple[float, float]:
        measured = result(load("window", port, SECONDS, OUTSTANDING))
        assert measured["lost"] == measured["doubled"] == measured["failed"] == 0, measured
        return measured["sent"], measured["per_second"]

    return broker.pid, turn


def server(stack: ExitStack, **settings: Any) -> tuple[int, Load]:
    """Start server mode; returns the broker's process and its load."""
    port = free_port()
    mqtt, broker = stack.enter_context(rig.bridge_broker(server_route(port), **settings))

    def turn() -> tuple[float, float]:
        subscriber = counting(mqtt, SECONDS + 2, IDLE_SECONDS)
        measured = wrk(port, CONNECTIONS, SECONDS)
        unread = result(subscriber)["received"] - measured["requests"]  # answers that wrk did not wait for at its end
        assert measured["errors"] == 0 <= unread <= CONNECTIONS, (measured, unread)
        return measured["requests"], measured["per_second"]

    return broker.pid, turn


MODES: dict[str, Callable[..., tuple[int, Load]]] = {"client": client, "server": server}
SIDES = ("off", "off again", "on")


def measure(name: str, number: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return processor time a message and messages a second of each side, in one pair."""
    used, messages, rates = (dict.fromkeys(SIDES, 0.0) for _ in range(3))
    os.environ["PYTHONHASHSEED"] = str(number + 1)  # the same for all three
    with ExitStack() as stack:
        sides = {}
        for side in random.Random(number).sample(SIDES, len(SIDES)):
            sides[side] = MODES[name](stack, **({"admin_port": free_port()} if side == "on" else {}))
        for turn in range(TURNS + 1):
            first = turn % len(SIDES)
            for side in (*SIDES[first:], *SIDES[:first]):
                broker, load_once = sides[side]
                processes = [broker, *rig.children(broker)]
                before = sum(map(rig.cpu_seconds, processes))
                done, rate = load_once()
                if turn:
                    used[side] += sum(map(rig.cpu_seconds, processes)) - before
                    messages[side] += done
                    rates[side] += rate
    return {side: used[side] / messages[side] for side in SIDES}, rates


def compare(name: str, pairs: int) -> None:
    """Measure one mode with and without the admin port, and print the ratios."""
    measured = [measure(name, number) for number in range(pairs)]
    for what, index, wanted in (("processor time", 0, "at most 1.01"), ("rate", 1, "at least 0.99")):
        for side in ("on", "off again"):
            ratios = [one[index][side] / one[index]["off"] for one in measured]
            error = statistics.stdev(ratios) / pairs**0.5
            rig.report(
                f"{name} mode, {what}, {side} / off", f"{rig.median(ratios):.3f}", wanted if side == "on" else ""
            )
            rig.report("  mean of the pairs and its standard error", f"{statistics.mean(ratios):.3f} +- {error:.3f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    pairs = int(arguments.pop(arguments.index("--pairs") + 1)) if "--pairs" in arguments else PAIRS
    for chosen in [one for one in arguments if one in MODES] or MODES:
        compare(chosen, pairs)
