"""The life of a call: from a message to its request, from the reply to its result, and what is released when."""

import pytest

from tests.engine.host import DOWN, LATE, Rigs, Runs, Source, text


def test_a_message_is_sent_its_response_published_and_then_the_message_released(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    rig.offer(b"hello", delivery=source)
    (sent,) = rig.waiting
    assert (sent.request.method, sent.request.url, sent.body) == ("POST", "http://server.test/x", b"hello")
    rig.broker.is_away = True
    rig.reply(200, b"answer")
    assert source.state == "held"
    rig.do(rig.broker.come_back)
    assert rig.published == [("out", b"answer")]
    assert source.state == "acknowledged"
    assert rig.statistics.admission.outstanding == 0


def test_a_message_that_no_event_listens_to_is_released_at_once(rigs: Rigs) -> None:
    records = Runs()
    rig, source = rigs(records=records), Source()
    rig.offer(topic="other", delivery=source)
    assert source.state == "acknowledged"
    assert [message.topic for message in records.unmatched] == ["other"]


def test_as_many_requests_are_in_flight_as_there_are_workers_and_the_others_wait_in_their_order(rigs: Rigs) -> None:
    rig = rigs(workers=2)
    payloads = [b"%d" % number for number in range(5)]
    rig.offer_all(*payloads)
    assert rig.bodies == payloads[:2]
    assert (rig.statistics.admission.in_flight, rig.statistics.admission.queued) == (2, 3)
    rig.reply()
    assert rig.bodies == payloads[:3]
    rig.reply_to_all()
    assert rig.bodies == payloads
    assert rig.statistics.admission.in_flight == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(None, "http_status", id="404"),
        pytest.param(DOWN, "connection_failed", id="down"),
        pytest.param(LATE, "timeout", id="late"),
        pytest.param(ValueError("not one of ours"), "connection_failed", id="a fault"),
    ],
)
def test_a_call_that_fails_publishes_why_and_leaves_nothing_behind(
    rigs: Rigs, error: Exception | None, code: str
) -> None:
    rig, source = rigs(text(config="WITH RETRIES 0")), Source()
    rig.offer(delivery=source)
    if error is None:
        rig.reply(404, b"no such thing")
    else:
        rig.fail(error)
    (failure,) = rig.failures
    assert failure["error"]["code"] == code
    assert (failure["route"], failure["event"], failure["source_topic"]) == ("R", "E", "in/a")
    assert (failure.get("status"), failure.get("body")) == ((404, "no such thing") if error is None else (None, None))
    assert (source.state, rig.healths) == ("acknowledged", ["Yellow"])
    assert (rig.statistics.admission.outstanding, rig.statistics.admission.in_flight) == (0, 0)


def test_a_retry_waits_without_a_place(rigs: Rigs) -> None:
    rig = rigs(workers=1)
    rig.offer_all(b"a", b"b")
    rig.reply(503)
    assert rig.bodies == [b"a", b"b"]
    assert (rig.statistics.admission.queued, rig.statistics.retried) == (1, 0)
    rig.advance(0.5)
    assert rig.bodies == [b"a", b"b"]  # the place is taken
    rig.reply_to_all()
    assert rig.bodies == [b"a", b"b", b"a"]
    assert rig.published == [("out", b"ok"), ("out", b"ok")]
    assert rig.statistics.retried == 1


def test_a_retry_begins_after_half_a_second_then_twice_as_long_and_ends_with_the_failure(rigs: Rigs) -> None:
    rig = rigs(text(config="WITH RETRIES 2"))
    rig.offer()
    for seconds in (0.5, 1, 100):
        rig.reply(503)
        rig.advance(seconds)
    assert not rig.waiting
    assert rig.failures[0]["status"] == 503
    assert rig.times == [0.0, 0.5, 1.5]


def test_retry_after_is_honoured(rigs: Rigs) -> None:
    rig = rigs()
    rig.offer()
    rig.reply(429, b"", ("Retry-After", "20"))
    rig.advance(100)
    rig.reply()
    assert rig.published == [("out", b"ok")]
    assert rig.times == [0.0, 20.0]


def test_a_lossless_call_is_tried_until_the_server_takes_it_with_the_same_key(rigs: Rigs) -> None:
    rig = rigs(text(route='WITH OVERLOAD_POLICY "lossless"'))
    (source,) = rig.offer_all(b"the key")
    for _ in range(20):
        rig.fail(LATE)
        rig.advance(40)
    assert source.state == "held"
    rig.reply()
    assert source.state == "acknowledged"
    assert [sent.header("Idempotency-Key") for sent in rig.network.seen] == ["the key"] * 21


def test_two_events_of_a_message_hold_it_both(rigs: Rigs) -> None:
    rig, source = rigs(text(), text(name="S", event="WITH QOS 1")), Source()
    rig.offer(delivery=source)
    rig.reply()
    assert source.state == "held"
    rig.reply()
    assert source.state == "acknowledged"


def test_a_result_that_the_broker_refuses_is_an_error_of_its_route_and_releases_the_message(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    rig.broker.refuses.add("out")
    rig.offer(delivery=source)
    rig.reply()
    assert (source.state, rig.healths) == ("acknowledged", ["Yellow"])
    assert rig.statistics.status(0.0)["last_error"]["code"] == "not_published"


def test_a_message_ends_after_eight_routes_and_its_failure_begins_no_chain_again(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    rig.offer(hops=7)
    rig.reply()
    assert [(publication.topic, hops, route) for publication, hops, route in rig.broker.published] == [("out", 8, "R")]
    rig.broker.published.clear()
    rig.offer(hops=8, delivery=source)
    assert (rig.waiting, rig.published, rig.statistics.refused, source.state) == ([], [], 1, "acknowledged")


def test_a_large_payload_that_was_released_is_sent_again_in_the_same_request(rigs: Rigs) -> None:
    rig = rigs(text(method="PUT"), max_body_bytes=1 << 20)
    rig.offer(b"x" * 200_000)
    rig.reply(503)
    rig.advance(1)
    assert rig.bodies == [b"x" * 200_000] * 2


def test_a_large_payload_stays_where_its_failure_needs_it(rigs: Rigs) -> None:
    rig = rigs(text("WITH FAILURE_PAYLOAD true", body="", config="WITH RETRIES 0"))
    rig.offer(b"x" * 200_000)
    rig.reply(500)
    assert rig.failures[0]["payload"] == "x" * 200_000


def test_a_stop_lets_what_runs_end_and_begins_nothing_more(rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    rig, kept, lost = rigs(workers=1), Source(is_bounded=True), Source()
    for delivery in (None, lost, kept):
        rig.offer(delivery=delivery)
    rig.do(rig.mode.stop)
    rig.reply()
    assert rig.published == [("out", b"ok")]
    assert len(rig.network.seen) == 1
    rig.run(rig.mode.drain(0))
    assert (lost.state, kept.state) == ("held", "held")
    assert "1 message(s) had not been answered" in caplog.text


def test_a_drain_ends_what_takes_longer_than_its_time(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    rig.offer(delivery=source)
    rig.do(rig.mode.stop)
    rig.run(rig.mode.drain(0))
    assert source.state == "held"
    assert rig.statistics.admission.in_flight == 0
