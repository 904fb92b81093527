"""What a route holds: OVERLOAD_CAPACITY, OVERLOAD_BYTES, queue_bytes, max_message_bytes, OVERLOAD_TIMEOUT, policies."""

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.lot.model import Message
from tests.engine.host import Rig, Rigs, Source, text


def bounded(most: str = "1000", name: str = "R", more: str = "", event: str = "") -> str:
    bounds = f'WITH OVERLOAD_BYTES "{most}" {more}'
    return text(event, name=name, route=bounds, body="").replace('"in/#"', f'"{name}/#"')


def full(capacity: int = 2, timeout: int = 1000, policy: str = "balanced", more: str = "") -> str:
    bounds = f'WITH OVERLOAD_TIMEOUT {timeout} WITH OVERLOAD_POLICY "{policy}"'
    body = 'WITH BODY "{payload}" WITH HEADERS ADD Content-Type "text/plain" ' + more
    return text(route=bounds, body=body).replace("OVERLOAD_CAPACITY 1000", f"OVERLOAD_CAPACITY {capacity}")


def offer(rig: Rig, *sizes: int, name: str = "R") -> list[bool]:
    """Offer messages of these sizes; return whether each was taken."""
    taken = []
    for size in sizes:
        before = rig.outcomes.statistics[name].refused
        rig.offer(b"x" * size, f"{name}/1")
        taken.append(rig.outcomes.statistics[name].refused == before)
    return taken


def refusals(rig: Rig) -> list[str]:
    errors = [failure["error"] for failure in rig.failures]
    assert {error["code"] for error in errors} <= {"overloaded", "payload_too_large"}
    return [error["message"] for error in errors]


def counts(rig: Rig) -> tuple[int, int, int]:
    messages = rig.statistics.status(0.0)["messages"]
    return messages["queued"] + messages["in_flight"], messages["refused"], messages["total"]


@pytest.mark.parametrize("policy", ["balanced", "realtime", "lossless"])
def test_a_route_takes_payloads_up_to_overload_bytes(rigs: Rigs, policy: str) -> None:
    rig = rigs(bounded(more=f'WITH OVERLOAD_POLICY "{policy}"'))
    assert offer(rig, 600, 400, 1, 0) == [True, True, False, True]
    assert rig.statistics.status(0.0)["messages"]["held_bytes"] == 1000
    rig.reply()
    assert offer(rig, 601, 600) == [False, True]
    assert refusals(rig) == [
        f"the route is overloaded: its OVERLOAD_BYTES of 1000 bytes have no room for a payload of {size}"
        for size in ("1 byte", "601 bytes")
    ]


def test_a_message_larger_than_overload_bytes_is_taken_where_nothing_is_queued(rigs: Rigs) -> None:
    rig = rigs(bounded())
    assert offer(rig, 5000, 1) == [True, False]
    rig.reply()
    assert offer(rig, 1, 5000) == [True, False]


def test_the_payloads_of_all_routes_are_bounded_together_and_no_route_is_silenced(rigs: Rigs) -> None:
    rig = rigs(*[bounded("800", name) for name in "RST"], queue_bytes=1000)
    assert offer(rig, 400, 400, 400) == [True, True, False]
    assert offer(rig, 400, 400, name="S") == [True, False]  # nothing of S was queued
    assert rig.outcomes.queue_bytes.held == 1200
    assert refusals(rig)[1] == (
        "the bridge is overloaded: its queue_bytes of 1000 bytes have no room for a payload of 400 bytes"
    )
    rig.reply_to_all()
    assert rig.outcomes.queue_bytes.held == 0
    assert offer(rig, 400, name="S") == [True]


def test_a_message_over_max_message_bytes_takes_no_call(rigs: Rigs) -> None:
    rig, source = rigs(bounded("1MiB"), max_message_bytes=1000), Source()
    rig.offer(b"x" * 1001, "R/1", source)
    assert offer(rig, 1000) == [True]
    assert refusals(rig) == ["the message has 1001 bytes, max_message_bytes allows 1000"]
    assert source.state == "acknowledged"


def test_refused_messages_are_in_their_failures_while_there_is_room_for_them_and_never_when_too_large(
    rigs: Rigs,
) -> None:
    rig = rigs(bounded(event="WITH FAILURE_PAYLOAD true"), max_message_bytes=4 << 20)
    offer(rig, 1000)
    rig.broker.is_away = True
    offer(rig, *[4 << 20] * 6, (4 << 20) + 1)  # 24 MiB, and one that is too large
    rig.do(rig.broker.come_back)
    found = rig.failures
    assert [len(failure.get("payload", "")) for failure in found] == [4 << 20] * 3 + [0] * 4
    assert found[-1]["error"]["code"] == "payload_too_large"


def test_what_its_source_bounds_is_never_refused(rigs: Rigs) -> None:
    rig = rigs(full(2, 0), workers=1)
    sources = rig.offer_all(*[b"x"] * 10, is_bounded=True)
    assert counts(rig) == (10, 0, 10)
    assert {source.state for source in sources} == {"held"}


def test_a_refused_message_is_acknowledged_when_its_failure_is_published(rigs: Rigs) -> None:
    rig, source = rigs(full(1, 0)), Source()
    rig.offer()
    rig.broker.is_away = True
    rig.offer(delivery=source)
    assert source.state == "held"
    rig.do(rig.broker.come_back)
    assert source.state == "acknowledged"


def test_failures_beyond_their_bound_are_counted_and_their_messages_released(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.engine.failure_queue._MOST_FAILURES", 3)
    rig = rigs(full(1, 0))
    rig.offer()
    rig.broker.is_away = True
    sources = rig.offer_all(*[b"x"] * (16 + 3 + 5))
    assert [source.state for source in sources].count("acknowledged") == 5
    assert rig.statistics.refused == len(sources)


# OVERLOAD_TIMEOUT.


def test_a_message_waits_for_room_and_goes_when_a_call_ends(rigs: Rigs) -> None:
    rig = rigs(full())
    rig.offer_all(b"1", b"2", b"3", b"4")
    assert (rig.bodies, counts(rig)) == ([b"1", b"2"], (4, 0, 2))
    rig.reply()
    assert rig.bodies == [b"1", b"2", b"3"]
    rig.offer(b"5")  # behind the fourth
    rig.advance(0.9)
    rig.reply()
    rig.reply()
    assert rig.bodies == [b"1", b"2", b"3", b"4", b"5"]
    rig.advance(9)
    assert counts(rig) == (2, 0, 5)


def test_a_message_that_finds_no_room_in_time_is_refused(rigs: Rigs) -> None:
    rig = rigs(full())
    *_, source = rig.offer_all(b"1", b"2", b"3")
    rig.advance(0.6)
    rig.offer(b"4")
    rig.advance(0.5)
    assert (counts(rig), source.state) == ((3, 1, 3), "acknowledged")
    rig.advance(0.5)
    assert (counts(rig), len(refusals(rig))) == ((2, 2, 4), 2)
    rig.reply()
    assert rig.bodies == [b"1", b"2"]


def test_as_many_messages_and_bytes_wait_as_the_route_has_room_for(rigs: Rigs) -> None:
    rig = rigs(full())
    rig.offer_all(*[b"x"] * 5)
    assert counts(rig) == (4, 1, 3)
    rig = rigs(bounded(more="WITH OVERLOAD_TIMEOUT 50"))
    assert offer(rig, 1000, 600, 400, 1) == [True, True, True, False]
    assert rig.statistics.status(0.0)["messages"]["held_bytes"] == 2000
    rig.reply()
    assert len(rig.bodies) == 3
    rig.reply_to_all()
    assert rig.outcomes.queue_bytes.held == 0


def test_messages_whose_time_is_over_are_refused_a_hundred_at_a_time(rigs: Rigs) -> None:
    rig = rigs(full(250))
    rig.offer_all(*[b"x"] * 500)
    rig.clock.now = 1.0
    refused = []
    for _ in range(3):
        rig.do(lambda: rig.clock.pass_to(1.0))
        refused.append(rig.statistics.refused)
    assert refused == [100, 200, 250]


@pytest.mark.parametrize(("policy", "capacity"), [("realtime", 1000), ("lossless", 2)])
def test_only_a_balanced_route_waits(rigs: Rigs, policy: str, capacity: int) -> None:
    rig = rigs(full(capacity, policy=policy), workers=2)
    rig.offer_all(b"1", b"2")
    rig.offer()
    assert counts(rig) == (2, 1, 3)


def test_a_reload_lets_waiting_messages_go_by_the_new_definition_and_does_not_prolong_their_time(rigs: Rigs) -> None:
    rig = rigs(full())
    rig.offer_all(*[b"x"] * 4)
    rig.advance(0.6)
    rig.use(full(3, more="ADD X new"))
    assert [sent.header("X") for sent in rig.network.seen] == [None, None, "new"]
    assert counts(rig) == (4, 0, 3)
    rig.advance(0.5)
    assert counts(rig) == (3, 1, 4)


def test_messages_that_wait_for_room_when_their_route_goes_are_refused(rigs: Rigs) -> None:
    rig = rigs(full(150))
    sources = rig.offer_all(*[b"x"] * 300)
    rig.use(text(name="Other"))
    assert {source.state for source in sources[150:]} == {"acknowledged"}
    assert all("its route or event was removed" in message for message in refusals(rig))


def test_messages_that_wait_for_room_are_counted_at_the_end(rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    rig = rigs(full())
    rig.offer_all(b"1", b"2", b"3")
    rig.do(rig.mode.stop)
    rig.run(rig.mode.drain(0))
    assert "route R: 3 message(s) had not been answered at the end" in caplog.messages
    rig.advance(2)
    assert rig.published == []


# Failures that the source of a message reports.


@pytest.mark.parametrize(
    ("row", "counts"),
    [
        pytest.param(catalogue.BRIDGE_RESTARTED, (1, 0), id="a bridge died with it"),
        pytest.param(catalogue.DISK_FULL, (0, 1), id="it was not kept"),
    ],
)
@pytest.mark.parametrize("policy", ["balanced", "lossless"])
def test_a_failure_that_its_source_reports_ends_a_message_without_a_call(
    rigs: Rigs, row: catalogue.FailureRow, counts: tuple[int, int], policy: str
) -> None:
    rig, source = rigs(text(route=f'WITH OVERLOAD_POLICY "{policy}"')), Source()
    rig.broker.is_away = True
    message = Message("in/a", b"payload", 1.0)
    rig.do(lambda: rig.mode.fail_event(("R", "E"), message, row.error("Why."), source, hops=2))
    assert source.state == "held"
    rig.do(rig.broker.come_back)
    ((_, hops, _),) = rig.broker.published
    (failure,) = rig.failures
    assert (failure["error"]["message"], hops) == ("Why.", 3)
    assert (source.state, rig.network.seen) == ("acknowledged", [])
    assert (rig.statistics.failed, rig.statistics.refused) == counts
    assert rig.statistics.admission.outstanding == 0


def test_a_failure_for_an_event_that_is_gone_is_not_published(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    failure = catalogue.DISK_FULL.error("Why.")
    rig.do(lambda: rig.mode.fail_event(("R", "Gone"), Message("in/a", b"", 1.0), failure, source))
    assert (source.state, rig.published) == ("new", [])
