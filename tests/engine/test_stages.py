"""What settings do to calls: ON_CHANGE, DEDUPE_KEY, SCHEMA_FILE, WHEN, RETRY_ON, OAuth2, EVERY, FAILURE_PAYLOAD."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse
from tests.engine.host import DOWN, LATE, Rig, Runs, Source, text

Rigs = Callable[..., Rig]


def codes(rig: Rig) -> list[str]:
    return [json.loads(payload)["error"]["code"] for _, payload in rig.published]


def answering(rig: Rig) -> None:
    rig.network.answer = lambda _: HttpResponse(200, "OK", (), b"ok", 0.0)


# ON_CHANGE.


CHANGES = 'WITH ON_CHANGE "{payload}"'


def test_a_message_whose_text_is_the_last_one_of_its_topic_is_skipped(rigs: Rigs) -> None:
    records = Runs()
    rig = rigs(text(CHANGES), records=records)
    answering(rig)
    for payload in (b"1", b"1", b"2", b"2", b"1", b"\xff", b"\xff", b"\xfe"):
        rig.offer(payload)
    rig.offer(b"\xfe", "in/b")
    assert rig.bodies == [b"1", b"2", b"1", b"\xff", b"\xfe", b"\xfe"]
    assert [run.skipped for run in records.calls if run.skipped] == [
        ("unchanged", "ON_CHANGE is the same as in the last message of the topic")
    ] * 3


def test_what_is_compared_is_the_text(rigs: Rigs) -> None:
    rig = rigs(text("WITH ON_CHANGE '{value.json.on|none}'"))
    answering(rig)
    for payload in (b'{"on": true, "at": 1}', b'{"on": true, "at": 2}', b'{"on": false}', b"{}", b'{"at": 3}'):
        rig.offer(payload)
    assert rig.bodies == [b'{"on": true, "at": 1}', b'{"on": false}', b"{}"]


def test_a_text_that_cannot_be_filled_fails_the_call(rigs: Rigs) -> None:
    rig = rigs(text("WITH ON_CHANGE '{value.json.on}'"))
    rig.offer(b"{}")
    assert codes(rig) == ["placeholder_unresolved"]
    assert not rig.waiting


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_behind_an_equal_one_that_is_under_way_waits_for_its_end(rigs: Rigs, fails: bool) -> None:
    rig = rigs(text(CHANGES, config="WITH RETRIES 0"))
    rig.offer(b"1")
    rig.offer(b"1")
    assert len(rig.waiting) == 1
    rig.reply(400 if fails else 200)
    assert len(rig.waiting) == fails  # a call that failed was not seen
    assert rig.statistics.skipped == (not fails)


def test_a_message_that_is_not_wanted_is_not_remembered(rigs: Rigs) -> None:
    rig = rigs(text(f"{CHANGES} WITH WHEN \"{{payload}} != '2'\""))
    answering(rig)
    for payload in (b"1", b"2", b"1"):
        rig.offer(payload)
    assert rig.bodies == [b"1"]


def test_the_same_text_is_sent_again_after_its_time(rigs: Rigs) -> None:
    rig = rigs(text(f'{CHANGES} WITH ON_CHANGE_FOR "1h"'))
    answering(rig)
    for seconds in (0, 3599, 1, 3599, 1):
        rig.advance(seconds)
        rig.offer(b"1")
    assert [sent.at for sent in rig.network.seen] == [0.0, 3600.0, 7200.0]


def test_a_reload_that_changes_nothing_in_the_route_keeps_what_is_known(rigs: Rigs) -> None:
    rig = rigs(text(CHANGES))
    answering(rig)
    rig.offer(b"1")
    rig.use(text(CHANGES), text(CHANGES, name="Other").replace("in/#", "other"))
    rig.offer(b"1")
    assert rig.bodies == [b"1"]
    rig.use(text(f'{CHANGES} WITH ON_CHANGE_FOR "1h"'))
    rig.offer(b"1")
    assert rig.bodies == [b"1", b"1"]


def test_a_publisher_that_invents_topics_has_others_sent_once_more(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.engine.stages.on_change.MOST_TOPICS", 3)
    rig = rigs(text(CHANGES))
    answering(rig)
    for number in (*range(100), 96, 97, 99):
        rig.offer(b"1", f"in/{number}")
    assert len(rig.bodies) == 100 + 2  # 96 has pushed out 97


def test_of_a_thousand_messages_on_a_hundred_topics_exactly_the_changes_are_sent(rigs: Rigs) -> None:
    chance, rig = random.Random(7), rigs(text(CHANGES))
    answering(rig)
    state = dict.fromkeys((f"in/{number}" for number in range(100)), b"")
    expected = 0
    for number in range(1000):
        topic = f"in/{number % 100}"
        value = b"%d" % number if not state[topic] or chance.random() < 0.1 else state[topic]
        expected += value != state[topic]
        state[topic] = value
        rig.offer(value, topic)
    assert len(rig.bodies) == expected
    assert 120 < expected < 250


# DEDUPE_KEY.


DEDUPED = 'WITH DEDUPE_KEY "{property.id|}"'


def offer(rig: Rig, key: str, payload: bytes = b"x", delivery: Source | None = None) -> None:
    rig.offer(payload, user=(("id", key),), delivery=delivery)


def test_a_key_that_was_seen_sends_nothing_more_within_its_time(rigs: Rigs) -> None:
    rig = rigs(text(f'{DEDUPED} WITH DEDUPE_FOR "10m"'))
    answering(rig)
    for seconds in (0, 599, 1, 0):
        rig.advance(seconds)
        offer(rig, "a")
    assert [sent.at for sent in rig.network.seen] == [0.0, 600.0]
    offer(rig, "b")
    offer(rig, "")  # without a key
    offer(rig, "")
    assert len(rig.bodies) == 5


def test_a_call_that_failed_was_not_seen(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, config="WITH RETRIES 0"))
    for status in (500, 200):
        offer(rig, "a")
        rig.reply(status)
    offer(rig, "a")
    assert (len(rig.bodies), rig.statistics.skipped) == (2, 1)


def test_messages_with_the_key_of_one_that_is_under_way_wait_for_its_end_without_a_place(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, config="WITH RETRIES 1"), workers=2)
    sources = [Source() for _ in range(5)]
    for source in sources:
        offer(rig, "a", delivery=source)
    offer(rig, "b")
    assert (len(rig.waiting), rig.statistics.admission.in_flight) == (2, 2)
    rig.reply(503)
    rig.advance(1)
    rig.waiting.reverse()
    rig.reply(400)  # the second attempt of the first one: the next one is called
    assert len(rig.network.seen) == 4
    rig.waiting.reverse()
    rig.reply(200)
    assert {source.state for source in sources} == {"acknowledged"}
    assert (rig.statistics.skipped, rig.statistics.failed, rig.statistics.succeeded) == (3, 1, 1)


def test_a_claim_ends_with_a_call_that_is_taken_back(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, route='WITH OVERLOAD_POLICY "lossless"'))
    first, second = Source("1"), Source("2")
    offer(rig, "a", b"first", first)
    offer(rig, "a", b"second", second)
    rig.reply(503)
    first.is_dropped = True
    rig.do(rig.mode.drop_calls)
    assert [sent.body for sent in rig.waiting] == [b"second"]
    rig.reply()
    assert (first.state, second.state) == ("kept", "acknowledged")


def test_a_call_that_is_taken_back_while_others_are_parsed_claims_nothing(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, route='WITH OVERLOAD_POLICY "lossless" WITH RATE_LIMIT "1/s"'))
    source, again, parsing = Source("1"), Source("1"), rig.mode._routes["R"]._parsing
    rig.run(parsing.acquire())
    offer(rig, "a", b"x" * 20_000, source)
    source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    rig.do(parsing.release)
    offer(rig, "a", b"x" * 20_000, again)
    rig.reply()
    assert (source.state, again.state) == ("kept", "acknowledged")


def test_a_call_that_waits_for_a_claim_and_is_taken_back_does_not_get_it(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, route='WITH OVERLOAD_POLICY "lossless"', config="WITH RETRIES 0"))
    sources = [Source(str(number)) for number in range(3)]
    for number, source in enumerate(sources):
        offer(rig, "a", b"%d" % number, source)
    sources[1].is_dropped = True
    rig.do(rig.mode.drop_calls)
    rig.reply(404)
    assert [sent.body for sent in rig.waiting] == [b"2"]


def test_a_lossless_call_claims_its_key_by_the_definition_in_use(rigs: Rigs) -> None:
    lossless = 'WITH OVERLOAD_POLICY "lossless"'
    rig = rigs(text('WITH DEDUPE_KEY "{payload}"', route=lossless))
    rig.offer(b"a", delivery=Source())
    rig.reply(503)
    rig.use(text('WITH DEDUPE_KEY "{topic}"', route=lossless))
    rig.offer(b"a", "in/other", delivery=Source("2"))
    assert len(rig.waiting) == 1
    rig.advance(1)
    assert len(rig.waiting) == 2


@pytest.mark.parametrize("route", ["", 'WITH RATE_LIMIT "10/s"'])
def test_a_burst_of_one_key_is_sent_once(rigs: Rigs, route: str) -> None:
    rig = rigs(text(DEDUPED, route=route), workers=3)
    answering(rig)
    for _ in range(100):
        offer(rig, "a")
    rig.advance(60)
    assert len(rig.bodies) == 1
    assert (rig.statistics.skipped, rig.statistics.admission.outstanding) == (99, 0)


# SCHEMA_FILE, WHEN, RETRY_ON, FAILURE_PAYLOAD.


def test_a_payload_that_does_not_match_its_schema_fails_with_every_fault(rigs: Rigs, tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object", "required": ["a"], "properties": {"b": {"type": "integer"}}}')
    rig = rigs(text(f'WITH SCHEMA_FILE "{schema}"'))
    rig.offer(b'{"b": "x"}')
    ((_, payload),) = rig.published
    error = json.loads(payload)["error"]
    assert error["code"] == "schema_mismatch"
    assert "/b" in error["message"]
    rig.offer(b'{"a": 1}')
    assert len(rig.waiting) == 1


def test_a_message_for_which_when_is_false_sends_nothing_and_is_released(rigs: Rigs) -> None:
    records, source = Runs(), Source()
    rig = rigs(text("WITH WHEN '{value.json.v} > 1'"), records=records)
    rig.offer(b'{"v": 1}', delivery=source)
    assert (rig.waiting, rig.published, source.state) == ([], [], "acknowledged")
    assert (records.calls[0].outcome, records.calls[0].skipped) == (
        "skipped", ("when_false", "WHEN {value.json.v} > 1 is false: {value.json.v} is 1"),
    )  # fmt: skip


def test_other_statuses_are_retried_for_any_method_where_the_event_says_so(rigs: Rigs) -> None:
    rig = rigs(text('WITH RETRY_ON "418, 500-502"', config="WITH RETRIES 2"))
    rig.offer()
    for status in (418, 500, 501):
        rig.reply(status)
        rig.advance(5)
    assert len(rig.network.seen) == 3
    assert codes(rig) == ["http_status"]


@pytest.mark.parametrize(("method", "requests"), [("POST", 1), ("PUT", 4)])
def test_an_attempt_that_the_server_may_have_seen_is_repeated_for_idempotent_methods(
    rigs: Rigs, method: str, requests: int
) -> None:
    rig = rigs(text(method=method))
    rig.offer()
    while rig.waiting:
        rig.fail(LATE)
        rig.advance(30)
    assert len(rig.network.seen) == requests
    ((_, payload),) = rig.published
    assert (b"A POST that the server may have got is not tried again" in payload) is (method == "POST")


def test_no_secret_that_a_server_echoes_is_published_or_logged(rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = 'WITH USERNAME "me" WITH PASSWORD "hunter22" WITH RETRIES 0'
    rig = rigs(text("WITH FAILURE_PAYLOAD true", config=config, body='WITH HEADERS ADD X-Token "{value.json.token}"'))
    rig.offer(b'{"token": "t0ken-of-the-message"}')
    rig.reply(400, b"no: hunter22 t0ken-of-the-message")
    ((_, payload),) = rig.published
    told = json.loads(payload)
    assert told["body"] == "no: *** ***"
    assert json.loads(told["payload"]) == {"token": "t0ken-of-the-message"}  # it is published again as it was
    assert "hunter22" not in caplog.text
    assert "t0ken" not in caplog.text


# OAuth2.


TOKEN_URL = "http://issuer.test/token"
OAUTH2 = (
    f"""WITH OAUTH2_TOKEN_URL "{TOKEN_URL}" WITH OAUTH2_CLIENT_ID "me" WITH OAUTH2_CLIENT_SECRET "cl1ent-s3cret" """
)


class Issuer:
    """A server of tokens, and of the API that takes them."""

    def __init__(self, rig: Rig) -> None:
        self.asked: list[HttpRequest] = []
        self.refused: set[str] = set()
        self.answer: Callable[[HttpRequest], HttpResponse | Exception | None] = lambda _: None
        self.sent: list[HttpRequest] = []
        rig.network.answer = self._answer

    def _answer(self, request: HttpRequest) -> HttpResponse | Exception:
        if request.url == TOKEN_URL:
            self.asked.append(request)
            if (other := self.answer(request)) is not None:
                return other
            body = {"access_token": f"t0ken-{len(self.asked)}", "token_type": "bearer", "expires_in": 3600}
            return HttpResponse(200, "OK", (), json.dumps(body).encode(), 0.0)
        self.sent.append(request)
        token = dict(request.headers).get("Authorization", "")
        return HttpResponse(401 if token in self.refused else 200, "", (), token.encode(), 1.0)


def test_one_token_serves_all_calls_of_a_route(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2))
    issuer = Issuer(rig)
    for _ in range(20):
        rig.offer()
    assert {payload for _, payload in rig.published} == {b"Bearer t0ken-1"}
    assert len(issuer.asked) == 1
    rig.advance(3571)
    rig.offer()
    assert rig.published == [("out", b"Bearer t0ken-2")]


@pytest.mark.parametrize("failing", [False, True], ids=["token", "failure"])
def test_however_many_calls_wait_there_is_one_request_for_a_token(rigs: Rigs, failing: bool) -> None:
    rig = rigs(text(config=f"{OAUTH2} WITH RETRIES 0"))
    for _ in range(32):
        rig.offer()
    (asked,) = rig.waiting
    assert asked.request.url == TOKEN_URL
    if failing:
        rig.fail(LATE)
        assert codes(rig) == ["oauth2_failed"] * 32
    else:
        rig.reply(200, b'{"access_token": "t"}')
        assert len(rig.waiting) == 32


def test_a_401_renews_the_token_once_also_for_a_post(rigs: Rigs) -> None:
    rig = rigs(text(config=f"{OAUTH2} WITH RETRIES 0"))
    issuer = Issuer(rig)
    issuer.refused = {"Bearer t0ken-1"}
    rig.offer()
    assert rig.published == [("out", b"Bearer t0ken-2")]
    issuer.refused = {"Bearer t0ken-2", "Bearer t0ken-3"}
    rig.offer()
    assert codes(rig) == ["http_status"]
    assert len(issuer.asked) == 3


def test_requests_for_a_token_take_no_turn_and_repeated_ones_do(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2, route='WITH RATE_LIMIT "1/s"'))
    Issuer(rig).refused = {"Bearer t0ken-1"}
    rig.offer()
    rig.advance(1)
    assert [(sent.server, sent.at) for sent in rig.network.seen] == [
        *((TOKEN_URL, 0.0), ("http://server.test", 0.0), (TOKEN_URL, 0.0), ("http://server.test", 1.0)),
    ]


def test_a_failure_of_the_tokens_server_is_retried_like_a_connection(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2))
    issuer = Issuer(rig)
    answers: list[HttpResponse | Exception | None] = [HttpResponse(503, "", (), b"", 0.0), DOWN, None]
    issuer.answer = lambda _: answers.pop(0)
    rig.offer()
    rig.advance(10)
    assert rig.published == [("out", b"Bearer t0ken-3")]
    assert rig.statistics.retried == 2


def test_refused_credentials_are_a_failure_that_is_not_retried_and_shows_no_secret(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rig = rigs(text(config=OAUTH2))
    refusal = json.dumps({"error": "invalid_client", "error_description": "cl1ent-s3cret"}).encode()
    Issuer(rig).answer = lambda _: HttpResponse(401, "", (), refusal, 0.0)
    rig.offer()
    ((_, payload),) = rig.published
    error = json.loads(payload)["error"]
    assert error["code"] == "oauth2_failed"
    assert "(invalid_client)" in error["message"]
    assert "OAUTH2_CLIENT_SECRET" in error["hint"]
    assert b"cl1ent" not in payload
    assert "cl1ent" not in caplog.text


def test_a_token_that_a_server_echoes_is_masked(rigs: Rigs) -> None:
    rig = rigs(text(config=f"{OAUTH2} WITH RETRIES 0"))
    Issuer(rig).refused = {"Bearer t0ken-1", "Bearer t0ken-2"}
    rig.offer()
    assert json.loads(rig.published[0][1])["body"] == "Bearer ***"


def test_an_authorization_of_the_event_wins(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2, body='WITH HEADERS ADD Authorization "Bearer own"'))
    issuer = Issuer(rig)
    rig.offer()
    assert rig.published == [("out", b"Bearer own")]
    assert not issuer.asked


# EVERY.


POLL = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://server.test" WITH ENABLE_CLIENT "true" {config}
        ADD EVENT E WITH EVERY "{every}" WITH METHOD "GET" WITH ENDPOINT "/poll" WITH DESTINATION_TOPIC "{topic}"
"""


def poll(every: str = "10s", topic: str = "out", config: str = "") -> str:
    return POLL.format(every=every, topic=topic, config=config)


def test_an_event_runs_at_its_interval_with_an_empty_payload_and_its_own_topic(rigs: Rigs) -> None:
    rig = rigs(poll(topic="{topic}/done"))
    rig.advance(0)
    rig.reply()
    assert rig.published == [("$schedule/R/E/done", b"ok")]
    answering(rig)
    rig.advance(30)
    assert [sent.at for sent in rig.network.seen] == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("every", "chance", "first", "second"),
    [
        pytest.param("10s", 0.5, 5.0, 15.0, id="within its interval"),
        pytest.param("1d", 1.0, 60.0, 86_460.0, id="within a minute"),
    ],
)
def test_the_first_run_comes_after_a_random_delay(
    rigs: Rigs, every: str, chance: float, first: float, second: float
) -> None:
    rig = rigs(poll(every), chance=chance)
    answering(rig)
    rig.advance(second)
    assert [sent.at for sent in rig.network.seen] == [first, second]


def test_a_message_on_the_topic_of_a_schedule_runs_nothing(rigs: Rigs) -> None:
    rig = rigs(poll("1d"))
    answering(rig)
    rig.advance(0)
    rig.offer(topic="$schedule/R/E")
    assert len(rig.network.seen) == 1


def test_a_run_that_has_not_ended_is_not_run_again_not_even_after_a_reload(rigs: Rigs) -> None:
    rig = rigs(poll())
    rig.advance(25)
    rig.use(poll(topic="other"))
    rig.advance(25)
    assert len(rig.network.seen) == 1
    rig.reply()
    rig.advance(10)
    assert len(rig.network.seen) == 2


def test_a_reload_makes_no_extra_run_and_delays_none_and_a_changed_interval_counts_from_the_last_run(
    rigs: Rigs,
) -> None:
    rig = rigs(poll())
    answering(rig)
    rig.advance(4)
    rig.use(poll(topic="other"))
    rig.advance(6)
    rig.use(poll("6s"))
    rig.advance(6)
    assert [sent.at for sent in rig.network.seen] == [0.0, 10.0, 16.0]


def test_time_that_was_missed_is_not_made_up_for(rigs: Rigs) -> None:
    rig = rigs(poll())
    answering(rig)
    rig.clock.now += 10_000
    rig.advance(0)
    rig.advance(5)
    assert len(rig.network.seen) == 1


def test_only_the_one_that_leads_runs_it_and_takes_over_in_step(rigs: Rigs) -> None:
    rig = rigs(poll())
    answering(rig)
    rig.leads = False
    rig.advance(25)
    assert rig.network.seen == []
    rig.leads = True
    rig.advance(10)
    assert [sent.at for sent in rig.network.seen] == [30.0]


def test_a_failed_run_is_retried_and_a_lossless_one_has_a_key(rigs: Rigs) -> None:
    rig = rigs(poll("1h") + '        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    rig.advance(0)
    rig.fail(LATE)
    rig.advance(1)
    rig.reply()
    first, second = rig.network.seen
    assert first.header("Idempotency-Key") == second.header("Idempotency-Key") is not None


def test_a_stop_ends_the_schedule(rigs: Rigs) -> None:
    rig = rigs(poll())
    rig.do(rig.mode.stop)
    rig.advance(100)
    assert rig.network.seen == []


def test_a_when_that_was_unusable_for_each_message_of_a_minute_makes_its_route_yellow(rigs: Rigs) -> None:
    rig = rigs(text("WITH WHEN '{value.json.celsius} > 30'"))
    for _ in range(4):
        rig.offer(b'{"celsius": "hot"}')
    assert rig.statistics.health == "Green"
    rig.offer(b"{}")
    assert (rig.statistics.health, rig.healths) == ("Yellow", ["Yellow"])
    assert rig.statistics.health_reason == (
        "event E, each message of the last minute was skipped: WHEN: {value.json.celsius} is missing (the payload has "
        "no field celsius)"
    )
    rig.offer(b'{"celsius": 3}')
    assert rig.healths == ["Yellow", "Green"]
    for _ in range(9):
        rig.offer(b"{}")
    assert rig.healths == ["Yellow", "Green"], "one could be used within the minute"
    rig.advance(61)
    for _ in range(5):
        rig.offer(b"{}")
    rig.advance(59)
    assert rig.healths[2:] == ["Yellow"]
    rig.advance(61)
    assert rig.healths[2:] == ["Yellow", "Green"], "there were no messages for a minute"
