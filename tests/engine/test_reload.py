"""Reloads: what is under way ends by its definition, what waits goes by the present one; and what is taken back."""

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import Message
from tests.engine.host import Rig, Rigs, Source, states, text

LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


def kept(event: str = "", *, route: str = "", **parts: str) -> str:
    return text(event, route=f"{LOSSLESS} {route}", **parts)


def versions(rig: Rig) -> list[str | None]:
    return [sent.header("X") for sent in rig.network.seen]


def version(number: int) -> str:
    return f"WITH HEADERS ADD X {number}"


def test_what_waits_goes_by_the_present_definition_and_what_has_begun_by_its_own(rigs: Rigs) -> None:
    rig = rigs(text(version(1), body=""), workers=1)
    rig.offer_all(b"a", b"b")
    rig.use(text(version(2), body=""))
    rig.reply(503)
    rig.reply()
    rig.advance(1)
    assert versions(rig) == ["1", "2", "1"]


def test_a_lossless_call_is_tried_again_by_the_changed_definition_with_the_same_key(rigs: Rigs) -> None:
    rig = rigs(kept(version(1), body=""))
    (source,) = rig.offer_all(b"the key")
    rig.reply(500)
    rig.use(kept(version(2), body=""))
    rig.advance(1)
    rig.reply()
    assert versions(rig) == ["1", "2"]
    assert [sent.header("Idempotency-Key") for sent in rig.network.seen] == ["the key", "the key"]
    assert source.state == "acknowledged"


def test_messages_that_wait_when_their_route_goes_fail_and_lossless_ones_stay_with_their_source(rigs: Rigs) -> None:
    rig = rigs(text(), kept(name="L").replace("in/#", "kept"), workers=1)
    balanced, lossless = rig.offer_all(b"1", b"2", b"3"), rig.offer_all(b"1", b"2", b"3", topic="kept")
    rig.use(text(name="Other"))
    rig.reply(503)  # a call that runs is tried again as it would have been
    rig.advance(1)
    rig.reply_to_all()
    assert states(balanced) == "acknowledged acknowledged acknowledged"
    assert states(lossless) == "acknowledged kept kept"
    failures = [failure["error"]["message"] for failure in rig.failures]
    assert ["its route or event was removed" in message for message in failures] == [True, True]


def test_a_lossless_call_whose_event_is_gone_stays_with_its_source_and_frees_its_room(rigs: Rigs) -> None:
    rig, source = rigs(kept()), Source()
    rig.offer(delivery=source)
    rig.reply(503)
    rig.use(kept().replace("EVENT E ", "EVENT F "))
    rig.advance(1)
    assert source.state == "kept"
    assert (rig.statistics.admission.outstanding, rig.statistics.retrying) == (0, 0)


def test_a_route_that_is_gone_and_back_goes_on_where_it_was_unless_all_of_it_has_ended(rigs: Rigs) -> None:
    paced = text("WITH ORDERED true", route='WITH RATE_LIMIT "1/m"')
    rig = rigs(paced)
    rig.offer(b"1")
    rig.use(text(name="Other"))
    rig.use(paced)
    rig.offer(b"2")
    rig.advance(100)
    assert rig.bodies == [b"1"]
    rig.reply_to_all()
    assert rig.bodies == [b"1", b"2"]
    assert (rig.statistics.succeeded, rig.statistics.admission.outstanding) == (2, 0)
    rig.advance(60)  # until the next turn
    rig.use(text(name="Other"))
    rig.use(text(name="Other"))
    rig.use(paced)
    assert rig.statistics.succeeded == 0


def test_the_health_of_a_route_that_is_gone_is_not_reported(rigs: Rigs) -> None:
    rig = rigs(text(config="WITH RETRIES 0"))
    rig.offer()
    rig.use(text(name="Other"))
    rig.reply(500)
    assert rig.healths == []


def test_connections_are_closed_when_their_server_changes_and_again_when_its_last_call_has_ended(rigs: Rigs) -> None:
    rig = rigs()
    rig.offer()
    rig.use(text("WITH QOS 1"))
    (first,) = rig.network.clients
    assert first.closed == 0
    rig.use(text(config="WITH REQUEST_TIMEOUT 5"))
    assert first.closed == 1
    rig.reply()
    assert [one.closed for one in rig.network.clients] == [2, 0]


def test_routes_that_cannot_be_used_change_nothing(rigs: Rigs) -> None:
    rig = rigs()
    rig.network.is_unusable = True
    with pytest.raises(ConfigurationError):
        rig.use(text(name="Other"))
    rig.offer()
    assert len(rig.waiting) == 1
    assert list(rig.outcomes.statistics) == ["R"]


def test_a_retry_of_a_run_goes_to_its_event_alone_by_the_definition_in_use(rigs: Rigs) -> None:
    rig, source = rigs(text(version(1), body=""), text(name="S")), Source()
    message = Message("in/old", b"again", 5.0)
    rig.use(text(version(2), body=""))
    rig.do(lambda: rig.mode.run_event(("R", "E"), message, source, "the old run"))
    assert versions(rig) == ["2"]
    rig.reply()
    assert source.state == "acknowledged"
    assert not rig.mode.run_event(("R", "gone"), message)


# Messages that their source takes back.

ROOM = text(route="WITH OVERLOAD_TIMEOUT 1000").replace("CAPACITY 1000", "CAPACITY 1")
ORDERED = kept("WITH ORDERED true")
KEY = kept('WITH DEDUPE_KEY "key"', route='WITH RATE_LIMIT "100/s"')


def batch(event: str) -> str:
    return kept(event, body='WITH BODY "{batch}"')


@pytest.mark.parametrize(
    ("definition", "before", "numbers", "after", "bodies", "kept"),
    [
        pytest.param(kept(), None, [0], 200, "0 1 2", [], id="while it runs"),
        pytest.param(kept(), None, [0], 503, "0 1 2", [0], id="while it runs, and fails"),
        pytest.param(kept(), 503, [0], 200, "0 1 2", [0], id="for its next attempt"),
        pytest.param(kept(), None, [1, 2], 200, "0", [1, 2], id="for a place"),
        pytest.param(kept(route='WITH RATE_LIMIT "1/m"'), None, [1], 200, "0 2", [1], id="for a turn"),
        pytest.param(kept(route='WITH BREAKER "1 per 1m"'), 503, [0], 200, "0 1 2", [0], id="for its target"),
        pytest.param(ROOM, None, [1], 200, "0", [1], id="for room"),
        pytest.param(ORDERED, 503, [0], 200, "0 1 2", [0], id="as the first of its line"),
        pytest.param(ORDERED, 503, [0, 1], 200, "0 2", [0, 1], id="as the first two of a line"),
        pytest.param(ORDERED, 503, [1], 200, "0 0 2", [1], id="as the second of its line"),
        pytest.param(ORDERED, 503, [2], 200, "0 0 1", [2], id="as the last of its line"),
        pytest.param(KEY, 503, [0], 200, "0 1", [0], id="with a key that others wait for"),
        pytest.param(KEY, None, [1], 404, "0 2", [1], id="for a key"),
        pytest.param(batch("WITH BATCH_SIZE 9"), None, [0], 200, "[1,2]", [0], id="in an open batch"),
        pytest.param(batch("WITH BATCH_SIZE 3"), 503, [0], 200, "[0,1,2] [1,2]", [0], id="as the first of a batch"),
        pytest.param(batch("WITH BATCH_SIZE 3"), 503, [1], 200, "[0,1,2] [0,2]", [1], id="as the second of a batch"),
        pytest.param(batch("WITH BATCH_SIZE 3"), 503, [0, 1], 200, "[0,1,2] [2]", [0, 1], id="all of a batch but one"),
        pytest.param(batch("WITH BATCH_SIZE 3"), 503, [0, 1, 2], 200, "[0,1,2]", [0, 1, 2], id="all of a batch"),
        pytest.param(
            batch("WITH BATCH_SIZE 3 WITH BATCH_SPLIT true"), None, [0, 2], 413, "[0,1,2] [1]", [0, 2],
            id="in a batch that is refused: what is left is not halved",
        ),
        pytest.param(
            batch("WITH BATCH_SIZE 1 WITH ORDERED true"), None, [1], 200, "[0] [2]", [1], id="in a batch of a line"
        ),
    ],
)  # fmt: skip
def test_a_message_is_given_up_wherever_it_waits_and_the_others_go_on(
    rigs: Rigs, definition: str, before: int | None, numbers: list[int], after: int, bodies: str, kept: list[int]
) -> None:
    rig = rigs(definition, workers=1)
    sources = rig.offer_all(b"0", b"1", b"2")
    if before is not None:
        rig.reply(before)
    running = rig.waiting[0].body or b"" if rig.waiting else b""
    rig.take_back(*[sources[number] for number in numbers])
    assert {sources[number].state for number in numbers if b"%d" % number not in running} <= {"kept"}
    if rig.waiting:
        rig.reply(after)
    for _ in range(5):
        rig.advance(100)
        rig.reply_to_all()
    assert b" ".join(body or b"" for body in rig.bodies).decode() == bodies
    assert [number for number, source in enumerate(sources) if source.state == "kept"] == kept
    assert {source.state for source in sources} <= {"kept", "acknowledged"}
    assert (rig.statistics.admission.outstanding, rig.statistics.retrying) == (0, 0)


def test_a_message_that_is_taken_back_while_others_are_parsed_is_given_up_once(rigs: Rigs) -> None:
    rig, source = rigs(text("WITH WHEN '{value.json.v} > 1'", route='WITH RATE_LIMIT "1/h"')), Source(is_bounded=True)
    parsing = rig.mode._routes["R"]._parsing
    rig.run(parsing.acquire())
    rig.offer(b" " * 20_000 + b'{"v": 1}', delivery=source)
    rig.take_back(source)
    assert source.state == "kept"
    rig.do(parsing.release)
    assert (source.state, rig.statistics.skipped) == ("kept", 0)
