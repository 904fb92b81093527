"""Messages a second to a server of 50 ms: batches of 500 against single calls, by number of workers, in turns.

    python -m tests.benchmarks.batches [ROUNDS]

4,000 messages of 100 bytes are under way at any time: a response that arrives is followed by as many messages as it
answers. The first second is left out; medians of 3 rounds. Batches are to take ten times as many with any number of
workers up to the default of `workers`. There it is the broker's one processor that bounds them, three quarters of it
amqtt's own work for a message: the ratio holds where the broker takes in 12,800 messages/s.
"""

import json
import sys
import time

from amqtt_rest_bridge.settings import Settings
from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet

WORKERS = (1, 4, 16, Settings.workers)
DELAY = 0.05  # seconds
SECONDS = 4.0
_UNDER_WAY = 4_000
_VALUE = b'"value"'
_PAYLOAD = json.dumps({"value": 21.5, "note": "x" * 74}).encode()
_ROUTE = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/echo" WITH BODY "{body}"
        WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "err" {batch}
"""
ARMS = {
    "batches": {"body": "{batch}", "batch": "WITH BATCH_SIZE 500"},
    "single calls": {"body": "{payload}", "batch": ""},
}


def rate(port: int) -> float:
    """Load a broker; return the messages a second that the server has answered."""
    receiver, sender = Wire(port, "batches-receiver"), Wire(port, "batches-sender")
    receiver.subscribe("out")
    receiver.subscribe("err")
    packet = publish_packet("in", _PAYLOAD)
    sender.send(packet * _UNDER_WAY)
    began, counted, start, end = time.perf_counter(), 0, 0.0, 0.0
    while end - began < SECONDS + 1:
        arrived = receiver.messages()
        if failure := next((payload for topic, payload in arrived if topic == "err"), None):
            raise RuntimeError(failure.decode())
        more = sum(payload.count(_VALUE) for _, payload in arrived)
        sender.send(packet * more)
        end = time.perf_counter()
        if start:
            counted += more
        elif end - began > 1:
            start = end
    return counted / (end - start)


def main() -> None:
    """Print a line for each number of workers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for workers in WORKERS:
        found: dict[str, list[float]] = {name: [] for name in ARMS}
        busy: dict[str, float] = {}
        with rig.echo_server(DELAY) as target:
            for _ in range(rounds):
                for name, arm in ARMS.items():
                    with rig.bridge_broker(_ROUTE.format(port=target, **arm), workers=workers) as (port, broker):
                        used, began = rig.cpu_seconds(broker.pid), time.perf_counter()
                        found[name].append(rate(port))
                        used = rig.cpu_seconds(broker.pid) - used
                        busy[name] = used / (time.perf_counter() - began)
        ratio = rig.median([batches / singles for batches, singles in zip(*found.values(), strict=True)])
        shown = " / ".join(f"{rig.median(runs):.0f}" for runs in found.values())
        rig.report(f"{workers} workers: messages/s, {' / '.join(found)}", shown)
        rig.report("  ratio", f"{ratio:.1f}", "at least 10")
        rig.report("  the broker's processor, of one", " / ".join(f"{one:.0%}" for one in busy.values()))


if __name__ == "__main__":
    main()
