"""DEDUPE_KEY of server events, with requests that come at the same time; tests/system/test_dedupe.py has the rest."""

from amqtt_rest_bridge.errors import BrokerAwayError
from amqtt_rest_bridge.lot.placeholders.text import Place
from tests.support.answering import Answering, port, result_of
from tests.support.server_mode import error_code, event, payload


def hooks(**settings: object) -> Answering:
    return port(event(dedupe_key=payload("{header.webhook-id}", Place.TEXT), **settings), request_timeout=7)  # type: ignore[arg-type]


def test_a_second_request_waits_for_the_first_and_publishes_nothing() -> None:
    made = hooks()
    made.broker.outcomes.append(False)
    first, second, other = (
        made.start(made.begin("POST", "/hook", body, Webhook_Id=key))
        for body, key in (("1", "a"), ("2", "a"), ("3", "b"))
    )
    assert (first.done(), second.done(), other.done()) == (False, False, True)
    made.broker.make_room()
    made.settle()
    assert [task.result().body for task in (first, second)] == [
        b'{"status": "published", "topic": "hook/received"}'
    ] * 2
    assert [body for _, body in made.published] == [b"3", b"1"]
    assert (made.mode._shared.turns._queues, made.waited) == ({}, [])
    assert [code for _, code in made.broker.counted].count("skipped") == 1


def test_where_the_first_one_fails_the_next_takes_its_place_and_the_others_wait_for_it() -> None:
    made = hooks()
    made.broker.outcomes.extend([False, BrokerAwayError("away"), True])
    tasks = [made.start(made.begin("POST", "/hook", str(number), Webhook_Id="a")) for number in range(4)]
    tasks[0].cancel()
    made.settle()
    assert error_code(result_of(tasks[1].result())) == "broker_unavailable"
    assert [task.result().status for task in tasks[2:]] == ["200 OK"] * 2
    assert [body for _, body in made.published] == [b"2"]


def test_one_that_waits_too_long_is_refused_and_publishes_nothing() -> None:
    made = hooks(reply="answers")
    tasks = [made.start(made.begin("POST", "/hook", str(number), Webhook_Id="a")) for number in range(4)]
    results = [result_of(made.finish(task)) for task in tasks]
    assert [error_code(result) for result in results] == [*["reply_timeout"] * 3, "overloaded"]
    assert (len(made.published), made.clock.now) == (3, 21)


def test_a_reply_is_kept_with_its_headers_and_a_large_one_is_replaced() -> None:
    made = hooks(reply="answers")
    for reply, again in ((b"\xff", b"\xff"), (b"x" * 70_000, b'{"status": "duplicate"}')):
        made.broker.on_wait = lambda _, reply=reply: reply  # type: ignore[misc]  # its type is plain
        first, second = (made.ask("POST", "/hook", "1", Webhook_Id=str(len(reply))) for _ in range(2))
        assert (first.content, second.content) == (reply, again)
    assert len(made.published) == 2


def test_the_key_is_known_for_its_time() -> None:
    made = hooks(dedupe_for=60)
    for seconds in (0, 59, 1.1):
        made.clock.advance(seconds)
        assert made.ask("POST", "/hook", "1", Webhook_Id="a").status_code == 200
    assert len(made.published) == 2
