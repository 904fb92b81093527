"""Messages beyond `max_message_bytes`, in payload or properties, beside a mosquitto that passes on whatever comes."""

import json
from pathlib import Path

import pytest

from tests.support.http_target import Target
from tests.worker.mosquitto import Client
from tests.worker.workers import Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

EMPTY = b"\x26\0\0\0\0"  # a user property without name and value
SITE = b"\x26\0\x04site\0\x05north"
LATE = b"\x26\0\x04late\0\x05north"
SIZES = pytest.mark.parametrize("megabytes", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (20, 60))])
ALLOWED = 1 << 20
SLACK = 4 << 20  # bytes by which the memory of a worker goes up and down


class Usage:
    """The processor time of a worker's event loop, in seconds, and the most memory that it takes, from here on."""

    def __init__(self, worker: Worker) -> None:
        self._proc = Path(f"/proc/{worker.process.pid}")
        (self._proc / "clear_refs").write_text("5")  # the most is what it takes now
        self._seconds, self._bytes = self._used()

    def more(self) -> tuple[float, int]:
        """Return how many seconds and bytes were used more since."""
        seconds, most = self._used()
        return seconds - self._seconds, most - self._bytes

    def _used(self) -> tuple[float, int]:
        seconds = int((self._proc / "schedstat").read_text().split()[0]) / 1e9
        lines = (self._proc / "status").read_text().splitlines()
        return seconds, 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def code(client: Client) -> str:
    """Return the code of the failure that comes next."""
    found: str = json.loads(client.next()[1])["error"]["code"]
    return found


@SIZES
def test_a_message_of_many_properties_fails_once_and_costs_no_more_than_a_payload_as_long(
    group: Group, target: Target, megabytes: int
) -> None:
    size = megabytes * 1_000_000

    def cost(properties: bytes, payload: bytes) -> tuple[float, int]:
        used = Usage(worker)
        group.broker.publish_bytes("in", properties, payload)
        assert code(group.client) == "payload_too_large"
        return used.more()

    group.routes(client_route("R", target.port, "in"))
    worker = group.start(slots=1, max_message_bytes=ALLOWED).ready()
    seconds, _ = cost(b"", bytes(size))
    many_seconds, many_bytes = cost(EMPTY * (size // len(EMPTY)), b"")
    assert many_seconds < 5 * seconds
    assert many_bytes < 4 * size + SLACK
    worker.stop()
    group.start(slots=1).ready()  # an unacknowledged message would come again
    group.client.publish("in", b"after")
    assert group.client.next() == ("results/R", b"after")
    assert [seen.body for seen in target.requests] == [b"after"]


@SIZES
def test_a_start_is_ready_with_such_a_message_before_its_suback(group: Group, target: Target, megabytes: int) -> None:
    group.routes(client_route("R", target.port, "in"))
    group.start(slots=1).ready().stop()
    group.broker.publish_bytes("in", EMPTY * (megabytes * 1_000_000 // len(EMPTY)), b"")
    worker = group.start(slots=1, max_message_bytes=ALLOWED).ready()
    assert code(group.client) == "payload_too_large"
    group.client.publish("in", b"after")
    assert group.client.next() == ("results/R", b"after")
    assert not worker.has_written("lost its connection")


def test_of_many_properties_the_first_are_carried_and_others_count_as_missing(group: Group, target: Target) -> None:
    """700,000 properties within `max_message_bytes`."""
    headers = 'ADD "X-Site" "{property.site}" ADD "X-Late" "{property.late|none}"'
    group.routes(client_route("R", target.port, "in", event=headers))
    group.start().ready()
    group.broker.publish_bytes("in", SITE + EMPTY * 700_000 + LATE, b"payload")
    assert group.client.next() == ("results/R", b"payload")
    (seen,) = target.requests
    assert (seen.headers["x-site"], seen.headers["x-late"]) == ("north", "none")
