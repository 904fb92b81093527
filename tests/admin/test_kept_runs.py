"""What the broker process keeps of runs is bounded in number and in bytes."""

import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from amqtt_rest_bridge.admin.evidence import Evidence, MaskedBody, MaskedResponse
from amqtt_rest_bridge.admin.kept_runs import MOST_BYTES, KeptRun, KeptRuns
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.lot.model import MessageProperties, Try


def run(number: int, *, route: str = "R", payload: bytes = b"", code: str | None = "http_status") -> KeptRun:
    record = Run(float(number), "call", f"{route}{number}", route, "E", "in", code=code)
    return KeptRun(record, "in", 0.0, payload, None)


def names(kept: KeptRuns, route: str | None = None) -> list[str | None]:
    return [one.run.id for one in kept.newest(route)]


class Copies:
    """Keeps copies of runs, and the ids of all that changed."""

    def __init__(self) -> None:
        self.runs: dict[str, KeptRun] = {}
        self.changed: list[str] = []

    def put(self, name: str, run: KeptRun | None) -> None:
        self.changed.append(name)
        if run is None:
            del self.runs[name]
        else:
            self.runs[name] = run


def test_of_each_route_the_last_hundred_failures_and_twenty_others_are_kept() -> None:
    kept = KeptRuns()
    for number in range(150):
        kept.add(run(number))
        kept.add(run(number, route="S"))
    for number in range(1000, 1030):
        kept.add(run(number, code=None))
    assert names(kept, "S") == [f"S{number}" for number in range(149, 49, -1)]
    assert names(kept, "R")[:20] == [f"R{number}" for number in range(1029, 1009, -1)]
    assert len(names(kept)) == 220


def test_a_retry_that_succeeds_resolves_all_failures_of_its_message() -> None:
    copies = Copies()
    kept = KeptRuns(copies=copies)
    for number, retry_of in enumerate((None, "R0", "R0", None)):
        one = run(number)
        kept.add(replace(one, run=replace(one.run, retry_of=retry_of)))
    kept.begin_retry("R0", "R2")
    kept.note_retry_outcome("R0", "failed")
    kept.begin_retry("R1", "R9")
    outcomes = {one.run.id: one.run.retry_outcome for one in kept.newest()}
    assert outcomes == {"R0": "failed", "R1": "retrying", "R2": None, "R3": None}
    copies.changed.clear()
    counted = kept.note_retry_outcome("R1", "succeeded")
    assert counted is not None
    assert counted.id == "R2", "its message counts by the last of them"
    assert copies.changed == ["R0", "R1", "R2"]
    kept.begin_retry("R0", "R10")
    kept.note_retry_outcome("R0", "failed")
    assert kept.note_retry_outcome("R0", "succeeded") is None, "once is enough"
    kept.begin_retry("R3", "R11")
    kept.end_retry("R3")
    outcomes = {one.run.id: one.run.retry_outcome for one in kept.newest()}
    assert outcomes == {"R0": "succeeded", "R1": "succeeded", "R2": "succeeded", "R3": None}


def test_all_together_take_no_more_than_their_bytes_and_the_largest_route_gives_way() -> None:
    kept = KeptRuns()
    kept.add(run(0, route="Small", payload=b"1"))
    for number in range(100):
        kept.add(run(number, route="Large", payload=bytes(1 << 20)))
    assert kept.bytes <= MOST_BYTES
    assert names(kept, "Small") == ["Small0"]
    assert names(kept, "Large") == [f"Large{number}" for number in range(99, 84, -1)]


@pytest.mark.parametrize("many", ["headers", "properties", "tries", "letters"])
def test_the_bytes_are_those_of_the_memory_that_runs_take(many: str) -> None:
    pairs = tuple((f"x-{number}", "") for number in range(100))
    tries = [Try(float(number), 500, "http_status", 1.0) for number in range(20)]
    response = MaskedResponse(422, "", list(pairs) if many == "headers" else [], MaskedBody(b"", 0))
    shown = Evidence("", "http://h/", 1, [], MaskedBody(b"1", 1), False, [("Host", "h")], MaskedBody(b"1", 1), response)
    one = replace(
        run(0), evidence=shown, properties=MessageProperties(pairs if many == "properties" else ()),
        run=replace(
            run(0).run, attempts=tries if many == "tries" else [], url="u" * (1000 if many == "letters" else 9)
        ),
    )  # fmt: skip
    sent, kept = msgspec.msgpack.encode(one), KeptRuns(most_bytes=1 << 18)
    tracemalloc.start()
    try:
        for number in range(250):
            came = msgspec.msgpack.decode(sent, type=KeptRun)  # as over the link: nothing is shared
            kept.add(replace(came, run=replace(came.run, id=str(number), route=str(number // 50))))
        assert tracemalloc.get_traced_memory()[0] < 2 * kept.bytes <= 2 << 18
    finally:
        tracemalloc.stop()


def test_a_payload_that_has_no_room_at_all_is_left_out_and_its_run_is_kept() -> None:
    kept = KeptRuns()
    kept.add(run(1, payload=bytes(MOST_BYTES + 1)))
    (one,) = kept.newest()
    assert one.payload is None


def test_each_change_is_passed_on_so_that_a_copy_has_the_same_runs() -> None:
    copies = Copies()
    copy, kept = copies.runs, KeptRuns(copies=copies)
    for number in range(300):
        kept.add(run(number % 170, payload=bytes(number % 7 * 100_000)))
    kept.begin_retry("R100", "other")
    before = copy["R100"].run
    kept.end_retry("R100")
    assert sorted(copy) == sorted(name or "" for name in names(kept))
    assert (before.retried_as, copy["R100"].run.retried_as) == (None, "other")
    assert names(KeptRuns(first=sorted(copy.values(), key=lambda one: one.run.time))) == sorted(
        copy, key=lambda name: copy[name].run.time, reverse=True
    )
