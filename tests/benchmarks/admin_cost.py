"""What the admin port costs while nothing fails: processor time and rate with `admin_port` against those without.

    python -m tests.benchmarks.admin_cost [client] [server] [--pairs N]

With and without in turns (5 pairs by default), each pair in the other order than the one before, so that both see the
same machine; the medians of the pairs' ratios. Processor time is that of broker and bridge process together, by
message.
"""

import sys
from collections.abc import Callable
from typing import Any

from tests.benchmarks import rig
from tests.benchmarks.client_mode import counting, pressed, result
from tests.benchmarks.client_mode import route as client_route
from tests.benchmarks.server_mode import SECONDS, wrk
from tests.benchmarks.server_mode import route as server_route
from tests.support.ports import free_port

Measured = tuple[float, float]
"""Messages a second, and microseconds of processor time a message."""


def client(**settings: Any) -> Measured:
    """Load client mode."""
    with rig.echo_server() as target, rig.bridge_broker(client_route(target), **settings) as (port, broker):
        measured = pressed(port, broker.pid)
    return measured["per_second"], measured["broker_us"] + measured["bridge_us"]


def server(**settings: Any) -> Measured:
    """Load server mode."""
    port = free_port()
    with rig.bridge_broker(server_route(port), **settings) as (mqtt, broker):
        subscriber = counting(mqtt, SECONDS + 2)
        processes = [broker.pid, *rig.children(broker.pid)]
        before = sum(map(rig.cpu_seconds, processes))
        measured = wrk(port, 16, SECONDS)
        used = sum(map(rig.cpu_seconds, processes)) - before
        result(subscriber)
    return measured["per_second"], used / measured["requests"] * 1e6


MODES: dict[str, Callable[..., Measured]] = {"client": client, "server": server}


def compare(name: str, pairs: int) -> None:
    """Measure one mode with and without the admin port in turns, and print the ratios."""
    mode = MODES[name]
    used: list[float] = []
    rates: list[float] = []
    for number in range(pairs):
        measured: dict[bool, Measured] = {}
        for is_on in (number % 2 == 0, number % 2 == 1):
            measured[is_on] = mode(admin_port=free_port()) if is_on else mode()
        rates.append(measured[True][0] / measured[False][0])
        used.append(measured[True][1] / measured[False][1])
    rig.report(f"{name} mode, admin port on / off: processor time", f"{rig.median(used):.3f}", "at most 1.01")
    rig.report("  rate", f"{rig.median(rates):.3f}", "at least 0.99")
    rig.report("  processor time of each pair", " ".join(f"{one:.3f}" for one in used))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    pairs = int(arguments.pop(arguments.index("--pairs") + 1)) if "--pairs" in arguments else 5
    for chosen in [one for one in arguments if one in MODES] or MODES:
        compare(chosen, pairs)
