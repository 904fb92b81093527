"""What settings do to calls: ON_CHANGE, DEDUPE_KEY, SCHEMA_FILE, WHEN, RETRY_ON, OAuth2, EVERY, FAILURE_PAYLOAD."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse
from tests.engine.host import DOWN, LATE, Rig, Rigs, Runs, Source, states, text

LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'

# ON_CHANGE.

CHANGES = 'WITH ON_CHANGE "{payload}"'
FIELD = "WITH ON_CHANGE '{value.json.on|none}'"
WANTED = f"{CHANGES} WITH WHEN \"{{payload}} != '2'\""


@pytest.mark.parametrize(
    ("event", "payloads", "bodies"),
    [
        pytest.param(CHANGES, [b"1", b"1", b"2", b"2", b"1"], [b"1", b"2", b"1"], id="text"),
        pytest.param(CHANGES, [b"\xff", b"\xff", b"\xfe"], [b"\xff", b"\xfe"], id="octets"),
        pytest.param(FIELD, [b'{"on": 1}', b'{"on": 1, "at": 2}', b"{}", b"[]"], [b'{"on": 1}', b"{}"], id="a field"),
        pytest.param(WANTED, [b"1", b"2", b"1"], [b"1"], id="what is not wanted is not remembered"),
    ],
)
def test_a_message_whose_text_is_the_last_one_of_its_topic_is_skipped(
    rigs: Rigs, event: str, payloads: list[bytes], bodies: list[bytes]
) -> None:
    records = Runs()
    rig = rigs(text(event), answers=True, records=records)
    rig.offer_all(*payloads)
    assert rig.bodies == bodies
    reasons = {run.skipped for run in records.calls if run.skipped and run.skipped[0] != "when_false"}
    assert reasons <= {("unchanged", "ON_CHANGE is the same as in the last message of the topic")}
    rig.offer(payloads[0], "in/b")
    assert rig.bodies == [*bodies, payloads[0]]


def test_a_text_that_cannot_be_filled_fails_the_call(rigs: Rigs) -> None:
    rig = rigs(text("WITH ON_CHANGE '{value.json.on}'"))
    rig.offer(b"{}")
    assert rig.codes == ["placeholder_unresolved"]
    assert not rig.waiting


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_behind_an_equal_one_that_is_under_way_waits_for_its_end(rigs: Rigs, fails: bool) -> None:
    rig = rigs(text(CHANGES, config="WITH RETRIES 0"))
    rig.offer_all(b"1", b"1")
    assert len(rig.waiting) == 1
    rig.reply(400 if fails else 200)
    assert len(rig.waiting) == fails  # a call that failed was not seen
    assert rig.statistics.skipped == (not fails)


def test_a_reload_that_changes_nothing_in_the_route_keeps_what_is_known(rigs: Rigs) -> None:
    rig = rigs(text(CHANGES), answers=True)
    rig.offer(b"1")
    rig.use(text(CHANGES), text(CHANGES, name="Other").replace("in/#", "other"))
    rig.offer(b"1")
    assert rig.bodies == [b"1"]
    rig.use(text(f'{CHANGES} WITH ON_CHANGE_FOR "1h"'))
    rig.offer(b"1")
    assert rig.bodies == [b"1", b"1"]


def test_a_publisher_that_invents_topics_has_others_sent_once_more(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.engine.stages.on_change.MOST_TOPICS", 3)
    rig = rigs(text(CHANGES), answers=True)
    for number in (*range(100), 96, 97, 99):
        rig.offer(b"1", f"in/{number}")
    assert len(rig.bodies) == 100 + 2  # 96 has pushed out 97


# DEDUPE_KEY.

DEDUPED = 'WITH DEDUPE_KEY "{property.id|}"'


def offer(rig: Rig, *keys: str, payload: bytes = b"x") -> list[Source]:
    """Offer messages with these keys; return their sources."""
    sources = [Source(key) for key in keys]
    for key, source in zip(keys, sources, strict=True):
        rig.offer(payload, user=(("id", key),), delivery=source)
    return sources


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(f'{DEDUPED} WITH DEDUPE_FOR "60m"', id="a key"),
        pytest.param(f'{CHANGES} WITH ON_CHANGE_FOR "1h"', id="the text of the last message"),
    ],
)
def test_what_was_seen_is_sent_again_after_its_time(rigs: Rigs, event: str) -> None:
    rig = rigs(text(event), answers=True)
    for seconds in (0, 3599, 1, 3599, 1):
        rig.advance(seconds)
        offer(rig, "a")
    assert rig.times == [0, 3600, 7200]


def test_messages_with_other_keys_and_without_one_are_all_sent(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED), answers=True)
    offer(rig, "a", "b", "a", "", "")
    assert len(rig.bodies) == 4


def test_messages_with_the_key_of_one_that_is_under_way_wait_for_its_end_without_a_place(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, config="WITH RETRIES 1"), workers=2)
    *sources, _ = offer(rig, *"aaaaab")
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


def test_a_call_that_is_taken_back_while_others_are_parsed_claims_nothing(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, route=f'{LOSSLESS} WITH RATE_LIMIT "1/s"'))
    parsing = rig.mode._routes["R"]._parsing
    rig.run(parsing.acquire())
    (source,) = offer(rig, "a", payload=b"x" * 20_000)
    rig.take_back(source)
    rig.do(parsing.release)
    (again,) = offer(rig, "a", payload=b"x" * 20_000)
    rig.reply()
    assert states([source, again]) == "kept acknowledged"


def test_a_lossless_call_claims_its_key_by_the_definition_in_use(rigs: Rigs) -> None:
    rig = rigs(text('WITH DEDUPE_KEY "{payload}"', route=LOSSLESS))
    rig.offer(b"a", delivery=Source())
    rig.reply(503)
    rig.use(text('WITH DEDUPE_KEY "{topic}"', route=LOSSLESS))
    rig.offer(b"a", "in/other", delivery=Source("2"))
    assert len(rig.waiting) == 1
    rig.advance(1)
    assert len(rig.waiting) == 2


def test_a_burst_of_one_key_is_sent_once_and_takes_one_turn(rigs: Rigs) -> None:
    rig = rigs(text(DEDUPED, route='WITH RATE_LIMIT "10/s"'), workers=3, answers=True)
    offer(rig, *"a" * 100)
    offer(rig, "b")
    rig.advance(60)
    assert rig.times == [0, 0.1]
    assert (rig.statistics.skipped, rig.statistics.admission.outstanding) == (99, 0)


# SCHEMA_FILE, WHEN, RETRY_ON, FAILURE_PAYLOAD.


def test_a_payload_that_does_not_match_its_schema_fails_with_every_fault(rigs: Rigs, tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object", "required": ["a"], "properties": {"b": {"type": "integer"}}}')
    rig = rigs(text(f'WITH SCHEMA_FILE "{schema}"'))
    rig.offer(b'{"b": "s3cret"}')
    (failure,) = rig.failures
    assert failure["error"]["code"] == "schema_mismatch"
    faults = "(root) lacks a; /b is not of type integer"
    assert failure["error"]["message"] == f"the payload does not match SCHEMA_FILE: {faults}"
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


def test_a_when_that_was_unusable_for_each_message_of_a_minute_makes_its_route_yellow(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rigs(text("WITH WHEN '{value.json.celsius} > 30'"))
    rig.offer_all(*[b'{"celsius": "hot"}'] * 4)
    assert rig.statistics.health == "Green"
    rig.offer(b"{}")
    assert (rig.statistics.health, rig.healths) == ("Yellow", ["Yellow"])
    assert rig.statistics.health_reason == (
        "event E, each message of the last minute was skipped: WHEN: {value.json.celsius} is missing (the payload has "
        "no field celsius)"
    )
    rig.offer(b'{"celsius": 3}')
    assert rig.healths == ["Yellow", "Green"]
    rig.offer_all(*[b"{}"] * 9)
    assert rig.healths == ["Yellow", "Green"], "one could be used within the minute"
    rig.advance(61)
    rig.offer_all(*[b"{}"] * 5)
    rig.advance(59)
    assert rig.healths[2:] == ["Yellow"]
    rig.advance(61)
    assert rig.healths[2:] == ["Yellow", "Green"], "there were no messages for a minute"
    said = [line for line in caplog.messages if line.startswith("route R, event E: each message is skipped: WHEN: ")]
    assert len(said) == 2, "once for the first of each time"


def test_other_statuses_are_retried_for_any_method_where_the_event_says_so(rigs: Rigs) -> None:
    rig = rigs(text('WITH RETRY_ON "418, 500-502"', config="WITH RETRIES 2"))
    rig.offer()
    for status in (418, 500, 501):
        rig.reply(status)
        rig.advance(5)
    assert len(rig.network.seen) == 3
    assert rig.codes == ["http_status"]


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
    hint = rig.failures[0]["error"]["hint"]
    assert ("A POST that the server may have got is not tried again" in hint) is (method == "POST")


# OAuth2.

TOKEN_URL = "http://issuer.test/token"
OAUTH2 = (
    f"""WITH OAUTH2_TOKEN_URL "{TOKEN_URL}" WITH OAUTH2_CLIENT_ID "me" WITH OAUTH2_CLIENT_SECRET "cl1ent-s3cret" """
)
ONCE = f"{OAUTH2} WITH RETRIES 0"


def token_answer(status: int = 200, **members: object) -> HttpResponse:
    return HttpResponse(status, "", (), json.dumps(members).encode(), 0.0)


class Issuer:
    """A server of tokens, and of the API that takes them; `refuses` are the tokens that this answers with 401.

    `seconds` is how long a token is good, `answer` an answer without one.
    """

    def __init__(self, rig: Rig, *refuses: str, seconds: object = 3600) -> None:
        self.asked = 0
        self.refuses = set(refuses)
        self.seconds = seconds
        self.answer: Callable[[], HttpResponse | Exception | None] = lambda: None
        rig.network.answer = self._answer

    def _answer(self, request: HttpRequest) -> HttpResponse | Exception:
        if request.url == TOKEN_URL:
            self.asked += 1
            token = f"t0ken-{self.asked}"
            return self.answer() or token_answer(access_token=token, token_type="bearer", expires_in=self.seconds)
        scheme_and_token = dict(request.headers).get("Authorization", "")
        status = 401 if scheme_and_token.removeprefix("Bearer ") in self.refuses else 200
        return HttpResponse(status, "", (), scheme_and_token.encode(), 1.0)


@pytest.mark.parametrize(
    ("seconds", "good"),
    [
        pytest.param(3600, 3570, id="half a minute before it expires"),
        pytest.param(10, 9, id="after nine tenths of a short life"),
        pytest.param("60", 54, id="seconds as text"),
        *[pytest.param(one, 1e9, id=str(one)) for one in (None, True, "soon", float("nan"))],
    ],
)
def test_a_token_is_renewed_before_it_expires_and_one_without_a_usable_life_never(
    rigs: Rigs, seconds: object, good: float
) -> None:
    rig = rigs(text(config=OAUTH2))
    issuer = Issuer(rig, seconds=seconds)
    for passed, asked in ((0.0, 1), (good - 0.5, 1), (0.5, 1 if good == 1e9 else 2)):
        rig.advance(passed)
        rig.offer()
        assert issuer.asked == asked


@pytest.mark.parametrize(
    ("status", "following"),
    [(200, ["http://server.test"]), (400, [TOKEN_URL]), (401, [TOKEN_URL]), (403, []), (500, [])],
)
def test_credentials_go_as_basic_first_and_into_the_form_where_that_is_refused(
    rigs: Rigs, status: int, following: list[str]
) -> None:
    rig = rigs(text(config=f'{ONCE} WITH OAUTH2_SCOPE "all"'))
    rig.offer()
    (basic,) = rig.waiting
    assert basic.header("Authorization") == "Basic bWU6Y2wxZW50LXMzY3JldA=="
    assert basic.body == b"grant_type=client_credentials&scope=all"
    rig.reply(status, b'{"access_token": "t"}')
    assert [sent.server for sent in rig.waiting] == following
    if following == [TOKEN_URL]:
        (form,) = rig.waiting
        assert form.header("Authorization") is None
        assert form.body == basic.body + b"&client_id=me&client_secret=cl1ent-s3cret"
        rig.reply(200, b'{"access_token": "t", "expires_in": 9}')
        rig.advance(10)
        rig.offer()
        assert rig.bodies[-1] == form.body  # at once: the server is known


@pytest.mark.parametrize(
    ("answer", "is_retried", "said"),
    [
        pytest.param(
            token_answer(401, error="invalid_client"), False, "401 Unauthorized (invalid_client)", id="refused"
        ),
        pytest.param(token_answer(429), True, "429 Too Many Requests", id="too many"),
        pytest.param(token_answer(503), True, "503 Service Unavailable", id="away"),
        pytest.param(token_answer(), False, "without a bearer token", id="no token"),
        pytest.param(token_answer(access_token="a b"), False, "without a bearer token", id="not a token"),
        pytest.param(
            token_answer(access_token="t", token_type="mac"), False, "without a bearer token", id="another kind"
        ),
    ],
)
def test_a_call_without_a_token_fails_and_is_retried_if_that_helps(
    rigs: Rigs, answer: HttpResponse, is_retried: bool, said: str
) -> None:
    rig = rigs(text(config=f"{OAUTH2} WITH RETRIES 1"))
    issuer = Issuer(rig)
    issuer.answer = lambda: answer
    rig.offer()
    rig.advance(1)
    (failure,) = rig.failures
    assert failure["error"]["code"] == "oauth2_failed"
    assert failure["error"]["message"].endswith(said)
    assert rig.statistics.retried == is_retried


@pytest.mark.parametrize("failing", [False, True], ids=["token", "failure"])
def test_however_many_calls_wait_there_is_one_request_for_a_token(rigs: Rigs, failing: bool) -> None:
    rig = rigs(text(config=ONCE))
    rig.offer_all(*[b"x"] * 32)
    (asked,) = rig.waiting
    assert asked.request.url == TOKEN_URL
    if failing:
        rig.fail(LATE)
        assert rig.codes == ["oauth2_failed"] * 32
    else:
        rig.reply(200, b'{"access_token": "t"}')
        assert len(rig.waiting) == 32


def test_a_401_renews_the_token_once_also_for_a_post_and_a_token_that_is_echoed_is_masked(rigs: Rigs) -> None:
    rig = rigs(text(config=ONCE))
    issuer = Issuer(rig, "t0ken-1")
    rig.offer()
    assert rig.published == [("out", b"Bearer t0ken-2")]
    issuer.refuses = {"t0ken-2", "t0ken-3"}
    rig.offer()
    (failure,) = rig.failures
    assert (failure["error"]["code"], failure["body"]) == ("http_status", "Bearer ***")
    assert issuer.asked == 3


def test_requests_for_a_token_take_no_turn_and_repeated_ones_do(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2, route='WITH RATE_LIMIT "1/s"'))
    Issuer(rig, "t0ken-1")
    rig.offer()
    rig.advance(1)
    assert [(sent.server, sent.at) for sent in rig.network.seen] == [
        *((TOKEN_URL, 0.0), ("http://server.test", 0.0), (TOKEN_URL, 0.0), ("http://server.test", 1.0)),
    ]


def test_a_failure_of_the_tokens_server_is_retried_like_a_connection(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2))
    answers: list[HttpResponse | Exception | None] = [HttpResponse(503, "", (), b"", 0.0), DOWN, None]
    Issuer(rig).answer = lambda: answers.pop(0)
    rig.offer()
    rig.advance(10)
    assert rig.published == [("out", b"Bearer t0ken-3")]
    assert rig.statistics.retried == 2


def test_an_authorization_of_the_event_wins(rigs: Rigs) -> None:
    rig = rigs(text(config=OAUTH2, body='WITH HEADERS ADD Authorization "Bearer own"'))
    issuer = Issuer(rig)
    rig.offer()
    assert rig.published == [("out", b"Bearer own")]
    assert not issuer.asked


# EVERY.


def poll(every: str = "10s", topic: str = "out", route: str = "") -> str:
    return f"""
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://server.test" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH EVERY "{every}" WITH METHOD "GET" WITH ENDPOINT "/poll" WITH DESTINATION_TOPIC "{topic}"
        {route}
"""


def test_an_event_runs_at_its_interval_with_an_empty_payload_and_its_own_topic(rigs: Rigs) -> None:
    rig = rigs(poll(topic="{topic}/done"), answers=True)
    rig.advance(30)
    assert rig.times == [0, 10, 20, 30]
    assert set(rig.published) == {("$schedule/R/E/done", b"ok")}
    rig.offer(topic="$schedule/R/E")  # a message on its topic runs nothing
    assert len(rig.network.seen) == 4


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
    rig = rigs(poll(every), chance=chance, answers=True)
    rig.advance(second)
    assert rig.times == [first, second]


def test_a_run_that_has_not_ended_is_not_run_again_not_even_after_a_reload(rigs: Rigs) -> None:
    rig = rigs(poll())
    rig.advance(25)
    rig.use(poll(topic="other"))
    rig.advance(25)
    assert rig.times == [0]
    rig.reply()
    rig.advance(10)
    assert rig.times == [0, 60]


def test_a_reload_makes_no_extra_run_and_delays_none_and_a_changed_interval_counts_from_the_last_run(
    rigs: Rigs,
) -> None:
    rig = rigs(poll(), answers=True)
    rig.advance(4)
    rig.use(poll(topic="other"))
    rig.advance(6)
    rig.use(poll("6s"))
    rig.advance(6)
    assert rig.times == [0, 10, 16]


def test_time_that_was_missed_is_not_made_up_for(rigs: Rigs) -> None:
    rig = rigs(poll(), answers=True)
    rig.clock.now += 10_000
    rig.advance(5)
    assert rig.times == [10_000]


def test_only_the_one_that_leads_runs_it_and_takes_over_in_step(rigs: Rigs) -> None:
    rig = rigs(poll(), answers=True)
    rig.leads = False
    rig.advance(25)
    rig.leads = True
    rig.advance(10)
    assert rig.times == [30]


def test_a_failed_run_is_retried_and_a_lossless_one_has_a_key(rigs: Rigs) -> None:
    rig = rigs(poll("1h", route=f"ADD ROUTE_CONFIG {LOSSLESS}"))
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
