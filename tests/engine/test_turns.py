"""When calls go on: RATE_LIMIT, ORDERED, the lease of a worker; BREAKER is in `test_circuit`."""

import logging

import pytest

from amqtt_rest_bridge.lot.model import HttpResponse
from tests.engine.host import LATE, Rigs, Source, text

ONE_A_SECOND = 'WITH RATE_LIMIT "1/s"'
LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


def ordered(event: str = "", **parts: str) -> str:
    return text(f"WITH ORDERED true {event}", **parts)


# RATE_LIMIT.


@pytest.mark.parametrize(
    ("limit", "workers", "statuses", "bodies", "times"),
    [
        pytest.param("2/s", 1, [200] * 4, [b"0", b"1", b"2", b"3"], [0, 0.5, 1, 1.5], id="each message"),
        pytest.param("1/s", 3, [200] * 3, [b"0", b"1", b"2"], [0, 3, 6], id="each of three workers a third"),
        pytest.param("1/m", 1, [503, 200], [b"0", b"0"], [0, 60], id="a retry"),
        pytest.param(
            "1/s", 1, [401, 200, 200], [b"0", b"0", b"1"], [0, 1, 2], id="a repeated request, before new messages"
        ),
    ],
)
def test_the_server_sees_no_more_requests_than_the_limit_in_the_order_of_arrival(
    rigs: Rigs, limit: str, workers: int, statuses: list[int], bodies: list[bytes], times: list[float]
) -> None:
    rig = rigs(text(route=f'WITH RATE_LIMIT "{limit}"'))
    replies = iter(statuses)
    rig.network.repeat, rig.network.answer = 401, lambda _: HttpResponse(next(replies), "", (), b"", 0.0)
    rig.do(lambda: rig.mode.share_limits(workers, float("inf")))
    rig.offer_all(*dict.fromkeys(bodies))
    rig.advance(100)
    assert (rig.bodies, rig.times) == (bodies, times)


def test_a_message_that_waits_for_its_turn_has_no_place_and_a_lone_one_waits_for_no_turn(rigs: Rigs) -> None:
    rig = rigs(text(route=ONE_A_SECOND), workers=64)
    rig.offer_all(b"1", b"2", b"3")
    assert (rig.statistics.admission.in_flight, rig.statistics.admission.queued) == (1, 2)
    for _ in range(2):
        rig.advance(5)
        rig.reply_to_all()
        rig.offer()
    assert rig.times == [0, 1, 2, 5, 10]


def test_what_sends_nothing_takes_no_turn_and_leaves_at_once_however_many_wait(rigs: Rigs) -> None:
    rig = rigs(text("WITH WHEN '{value.json.v} > 0' WITH FAILURE_PAYLOAD true",
                    body="WITH BODY '{value.json.x}'", route='WITH RATE_LIMIT "1/h"'))  # fmt: skip
    waiting, skipped, failed = (
        [source for _ in range(40) for source in rig.offer_all(payload)]
        for payload in (b'{"v": 1, "x": 2}', b'{"v": 0}', b'{"v": 1}')
    )
    assert {source.state for source in [*skipped, *failed]} == {"acknowledged"}
    assert {source.state for source in waiting} == {"held"}
    assert (rig.statistics.skipped, rig.statistics.failed, len(rig.waiting)) == (40, 40, 1)
    assert rig.codes == ["placeholder_unresolved"] * 40


def test_a_changed_limit_holds_at_once_for_what_waits(rigs: Rigs) -> None:
    rig = rigs(text(route='WITH RATE_LIMIT "1/h"'))
    rig.offer_all(*[b"x"] * 4)
    rig.advance(10)
    rig.use(text(route=ONE_A_SECOND))
    rig.advance(1)
    assert rig.times == [0.0, 10.0, 11.0]
    rig.use(text())
    rig.advance(0)
    assert rig.times == [0.0, 10.0, 11.0, 11.0]


def test_the_time_of_a_turn_is_not_that_of_the_server(rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    rig = rigs(text(route='WITH RATE_LIMIT "1/m"', config="WITH RETRIES 0"))
    rig.network.repeat = 401
    rig.offer()
    rig.advance(2)
    rig.reply(401)
    rig.advance(60)
    rig.fail(LATE)
    assert rig.statistics.failed == 1
    assert "in 4.000 s, waited 58.000 s" in caplog.text


# ORDERED.


def test_messages_of_one_topic_are_finished_one_after_the_other_and_others_go_beside_them(rigs: Rigs) -> None:
    rig = rigs(ordered())
    for topic, payload in (("in/a", b"a1"), ("in/a", b"a2"), ("in/b", b"b1"), ("in/a", b"a3")):
        rig.offer(payload, topic)
    assert rig.bodies == [b"a1", b"b1"]
    rig.broker.is_away = True
    rig.reply()
    assert rig.bodies == [b"a1", b"b1"]  # its result is not published yet
    rig.do(rig.broker.come_back)
    assert rig.bodies == [b"a1", b"b1", b"a2"]


def test_ordered_messages_wait_for_the_attempts_of_the_one_before_over_a_reload_too(rigs: Rigs) -> None:
    rig = rigs(ordered(config="WITH RETRIES 1"))
    rig.offer_all(b"0", b"1")
    rig.reply(503)
    rig.use(ordered("WITH QOS 1", config="WITH RETRIES 1"))
    rig.offer(b"2")
    rig.advance(0.5)
    rig.reply(503)
    rig.reply_to_all()
    assert rig.bodies == [b"0", b"0", b"1", b"2"]


@pytest.mark.parametrize("event", ["WITH WHEN \"{payload} != '0'\"", "WITH HEADERS ADD X {value.json.x}"])
def test_a_message_that_sends_nothing_lets_the_next_one_of_its_topic_go_on(rigs: Rigs, event: str) -> None:
    rig = rigs(ordered(event, body=""))
    rig.offer_all(b"0", b"0", b'{"x": 1}')
    assert len(rig.waiting) == 1


def test_an_ordered_message_begins_once_the_lease_is_renewed_and_others_wait_for_nothing(rigs: Rigs) -> None:
    rig = rigs(ordered(), text(name="S"))
    rig.do(lambda: rig.mode.share_limits(1, rig.clock.now + 10))
    rig.advance(11)
    rig.offer()
    assert len(rig.waiting) == 1
    rig.do(lambda: rig.mode.share_limits(1, rig.clock.now + 10))
    assert len(rig.waiting) == 2


def test_a_retry_waits_for_the_lease_too_and_is_given_up_when_its_source_takes_it_back(rigs: Rigs) -> None:
    rig, source, following = rigs(ordered(route=LOSSLESS)), Source(), Source()
    rig.do(lambda: rig.mode.share_limits(1, rig.clock.now + 10))
    rig.offer(b"a", delivery=source)
    rig.reply(503)
    rig.do(lambda: rig.mode.share_limits(1, rig.clock.now - 1))
    rig.advance(1)
    assert not rig.waiting
    rig.take_back(source)
    assert source.state == "kept"
    rig.offer(b"b", delivery=following)
    rig.do(lambda: rig.mode.share_limits(1, float("inf")))
    assert [sent.body for sent in rig.waiting] == [b"b"]


def test_retries_are_logged_once_a_second(rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = rigs(text(config="WITH RETRIES 1"))
    rig.offer_all(*[b"x"] * 5)
    rig.reply_to_all(503)
    rig.advance(1)
    lines = [record.getMessage() for record in caplog.records if "retry in" in record.getMessage()]
    assert len(lines) == 2
    assert "(and 3 more like it)" in lines[1]
