"""BREAKER: when it opens, which calls are probes, and what closes it."""

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import HttpResponse
from tests.engine.host import DOWN, Rig, Rigs, Source, text

BREAKER, LOSSLESS = 'WITH BREAKER "2 per 30s"', 'WITH OVERLOAD_POLICY "lossless"'


def opened(rigs: Rigs, route: str = "", config: str = "WITH RETRIES 0", **limits: int) -> Rig:
    rig = rigs(text(route=f"{BREAKER} {route}", config=config), **limits)
    rig.offer_all(b"early", b"early")
    rig.fail(DOWN)
    rig.fail(DOWN)
    assert rig.statistics.breaker == "open"
    rig.published.clear()
    return rig


def answer(status: int, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, "", headers, b"", 0.0)


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        pytest.param(catalogue.TIMEOUT.error("too late"), "open", id="timeout"),
        pytest.param(catalogue.CONNECTION_FAILED.error("refused"), "open", id="no connection"),
        pytest.param(catalogue.TLS_FAILED.error("expired"), "open", id="TLS"),
        *[pytest.param(answer(status), "open", id=str(status)) for status in (502, 503, 504)],
        *[pytest.param(answer(status), "closed", id=str(status)) for status in (200, 404, 429, 500, 501, 505)],
        pytest.param(catalogue.OAUTH2_FAILED.error("no token"), "closed", id="no token"),
        pytest.param(catalogue.RESPONSE_TOO_LARGE.error("too large"), "closed", id="large response"),
    ],
)
def test_only_failures_of_the_target_open_it(rigs: Rigs, reply: HttpResponse | CallError, state: str) -> None:
    rig = rigs(text(route=BREAKER, config="WITH RETRIES 0"))
    rig.network.answer = lambda _: reply
    rig.offer()
    assert rig.statistics.breaker == "closed"
    rig.advance(30)
    rig.offer()
    assert rig.statistics.breaker == state


def test_failures_that_are_spread_over_a_longer_time_do_not_open_it(rigs: Rigs) -> None:
    rig = rigs(text(route='WITH BREAKER "3 per 30s"', config="WITH RETRIES 0"))
    rig.network.answer = lambda _: DOWN
    for _ in range(60):
        rig.offer()
        rig.advance(16)
    assert len(rig.network.seen) == 60


def test_an_open_one_passes_one_call_at_a_time_and_one_in_five_seconds(rigs: Rigs) -> None:
    rig = opened(rigs)
    rig.network.answer = lambda _: DOWN
    for _ in range(241):
        rig.offer_all(b"1", b"2")
        rig.advance(0.125)
    assert rig.times[2:] == [5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 429, 500])
def test_any_answer_of_the_target_to_the_probe_closes_it_and_it_counts_from_the_beginning(
    rigs: Rigs, status: int
) -> None:
    rig = opened(rigs)
    rig.advance(5)
    rig.offer()
    rig.reply(status)
    assert rig.statistics.breaker == "closed"
    rig.offer()
    rig.fail(DOWN)
    assert rig.statistics.breaker == "closed"


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        pytest.param(None, None, id="none: it hangs"),
        pytest.param(catalogue.OAUTH2_FAILED.error("no token"), 5, id="it did not reach the target"),
        pytest.param(answer(503, ("Retry-After", "60")), 60, id="Retry-After"),
    ],
)
def test_a_probe_that_does_not_close_it_is_followed_by_another_one(
    rigs: Rigs, reply: HttpResponse | CallError | None, seconds: int | None
) -> None:
    rig = opened(rigs)
    rig.advance(5)
    rig.offer(b"probe")
    if reply is not None:
        rig.do(lambda: rig.waiting.pop(0).answer(reply))
    rig.advance((seconds or 600) - 0.1)
    rig.offer()
    assert len(rig.network.seen) == 3
    rig.advance(0.1)
    rig.offer()
    assert len(rig.network.seen) == (3 if seconds is None else 4)


def test_what_was_under_way_when_it_opened_does_not_close_it(rigs: Rigs) -> None:
    rig = rigs(text(route=BREAKER, config="WITH RETRIES 0"))
    rig.offer_all(b"1", b"2", b"3")
    rig.fail(DOWN)
    rig.fail(DOWN)
    rig.reply(200)
    assert rig.statistics.breaker == "open"


def test_workers_that_share_a_target_share_its_probes(rigs: Rigs) -> None:
    rig = rigs(text(route=BREAKER, config="WITH RETRIES 0"))
    rig.do(lambda: rig.mode.share_limits(3, float("inf")))
    rig.network.answer = lambda _: DOWN
    for _ in range(40):
        rig.offer()
        rig.advance(1)
    assert rig.times == [0, 1, 16, 31]


# What becomes of messages.


def test_messages_that_may_be_lost_fail_at_once_while_the_target_is_down(rigs: Rigs) -> None:
    rig, source = opened(rigs), Source()
    rig.offer(delivery=source)
    assert not rig.waiting
    assert rig.codes[-1] == "target_down"
    assert source.state == "acknowledged"
    assert rig.statistics.health == "Red"


def test_the_first_message_after_five_seconds_is_the_probe_and_an_answer_closes_it(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    rig = opened(rigs)
    rig.advance(5)
    rig.offer(b"probe")
    rig.offer(b"beside it")
    assert [sent.body for sent in rig.waiting] == [b"probe"]
    rig.reply(404)
    assert "the breaker is closed" in caplog.text
    rig.offer(b"after")
    assert [sent.body for sent in rig.waiting] == [b"after"]


def test_lossless_messages_wait_for_a_dead_target_and_are_all_sent_once_it_answers(rigs: Rigs) -> None:
    rig = opened(rigs, LOSSLESS, workers=4)
    sources = rig.offer_all(*[b"x"] * 20)
    assert (rig.waiting, rig.statistics.admission.in_flight) == ([], 0)
    for _ in range(3):
        rig.advance(5)
        assert len(rig.waiting) == 1
        rig.fail(DOWN)
    rig.advance(5)
    rig.reply_to_all()
    assert {source.state for source in sources} == {"acknowledged"}
    assert len(rig.network.seen) == 2 + 3 + 22


def test_a_message_that_was_tried_before_waits_for_the_target(rigs: Rigs) -> None:
    rig = rigs(text(route=BREAKER, config="WITH RETRIES 5"))
    rig.offer()
    rig.fail(DOWN)
    rig.advance(0.5)
    rig.fail(DOWN)
    rig.advance(4.9)
    assert not rig.waiting
    rig.advance(0.2)
    rig.reply()
    assert rig.published == [("out", b"ok")]


def test_the_next_one_probes_where_a_message_sends_nothing_any_more(rigs: Rigs) -> None:
    rig = opened(rigs, LOSSLESS)
    rig.offer_all(b"no", b"yes")
    rig.use(text("WITH WHEN \"{payload} = 'yes'\"", route=f"{BREAKER} {LOSSLESS}", config="WITH RETRIES 0"))
    rig.advance(5)
    assert [sent.body for sent in rig.waiting] == [b"yes"]
    assert rig.statistics.skipped == 3


def test_a_reload_with_the_same_target_and_rule_keeps_the_breaker_and_another_one_closes_it(rigs: Rigs) -> None:
    rig = opened(rigs)
    rig.use(text("WITH QOS 1", route=BREAKER, config="WITH RETRIES 0"))
    assert rig.statistics.breaker == "open"
    rig.use(text(route='WITH BREAKER "3 per 30s"', config="WITH RETRIES 0"))
    assert rig.statistics.breaker == "closed"
    rig.offer()
    assert len(rig.waiting) == 1


def test_what_was_sent_to_the_target_before_a_reload_says_nothing_of_this_one(rigs: Rigs) -> None:
    rig = rigs(text(route=BREAKER, config="WITH RETRIES 0"))
    rig.offer_all(b"1", b"2")
    other = text(route=BREAKER, config="WITH RETRIES 0").replace("http://server.test", "http://other.test")
    rig.use(other)
    for _ in range(2):
        rig.fail(DOWN)
    assert rig.statistics.breaker == "closed"
