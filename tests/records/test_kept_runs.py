"""What the broker process keeps of runs is bounded in number and in bytes."""

from amqtt_rest_bridge.link.admin_frames import Record
from amqtt_rest_bridge.records.kept_runs import MOST_BYTES, KeptRun, KeptRuns


def run(number: int, *, route: str = "R", payload: bytes = b"", code: str | None = "http_status") -> KeptRun:
    record = Record(float(number), "call", f"{route}{number}", route, "E", "in", code=code)
    return KeptRun(record, "in", 0.0, payload, None)


def names(kept: KeptRuns, route: str | None = None) -> list[str | None]:
    return [one.record.id for one in kept.newest(route)]


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


def test_all_together_take_no_more_than_their_bytes_and_the_largest_route_gives_way() -> None:
    kept = KeptRuns()
    kept.add(run(0, route="Small", payload=b"1"))
    for number in range(100):
        kept.add(run(number, route="Large", payload=bytes(1 << 20)))
    assert kept.bytes <= MOST_BYTES
    assert names(kept, "Small") == ["Small0"]
    assert names(kept, "Large") == [f"Large{number}" for number in range(99, 84, -1)]


def test_a_payload_that_has_no_room_at_all_is_left_out_and_its_run_is_kept() -> None:
    kept = KeptRuns()
    kept.add(run(1, payload=bytes(MOST_BYTES + 1)))
    (one,) = kept.newest()
    assert one.payload is None


def test_each_change_is_passed_on_so_that_a_copy_has_the_same_runs() -> None:
    copy: dict[str, KeptRun] = {}

    def change(name: str, changed: KeptRun | None) -> None:
        if changed is None:
            del copy[name]
        else:
            copy[name] = changed

    kept = KeptRuns(change)
    for number in range(300):
        kept.add(run(number % 170, payload=bytes(number % 7 * 100_000)))
    kept.retried("R100", "other")
    before = copy["R100"].record
    kept.retry_ended("R100")
    assert sorted(copy) == sorted(name or "" for name in names(kept))
    assert (before.retried_as, copy["R100"].record.retried_as) == (None, "other")
    assert names(KeptRuns(first=sorted(copy.values(), key=lambda one: one.record.time))) == sorted(
        copy, key=lambda name: copy[name].record.time, reverse=True
    )
