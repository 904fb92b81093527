"""Reloads: what is under way ends by its definition, what waits goes by the present one; and what is taken back."""

from collections.abc import Callable

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import Message
from tests.engine.host import Rig, Source, text

Rigs = Callable[..., Rig]

LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


def kept(event: str = "", **parts: str) -> str:
    return text(event, route=LOSSLESS, **parts)


def versions(rig: Rig) -> list[str | None]:
    return [sent.header("X") for sent in rig.network.seen]


def version(number: int) -> str:
    return f"WITH HEADERS ADD X {number}"


def test_what_waits_goes_by_the_present_definition_and_what_has_begun_by_its_own(rigs: Rigs) -> None:
    rig = rigs(text(version(1), body=""), workers=1)
    rig.offer(b"a")
    rig.offer(b"b")
    rig.use(text(version(2), body=""))
    rig.reply(503)
    rig.reply()
    rig.advance(1)
    assert versions(rig) == ["1", "2", "1"]


def test_a_lossless_call_is_tried_again_by_the_changed_definition_with_the_same_key(rigs: Rigs) -> None:
    rig, source = rigs(kept(version(1), body="")), Source("the key")
    rig.offer(delivery=source)
    rig.reply(500)
    rig.use(kept(version(2), body=""))
    rig.advance(1)
    rig.reply()
    assert versions(rig) == ["1", "2"]
    assert [sent.header("Idempotency-Key") for sent in rig.network.seen] == ["the key", "the key"]
    assert source.state == "acknowledged"


def test_messages_that_wait_when_their_route_goes_fail_and_lossless_ones_stay_with_their_source(rigs: Rigs) -> None:
    rig = rigs(text(), kept(name="L").replace("in/#", "kept"), workers=1)
    balanced, lossless = [Source() for _ in range(3)], [Source() for _ in range(3)]
    for one, other in zip(balanced, lossless, strict=True):
        rig.offer(delivery=one)
        rig.offer(delivery=other, topic="kept")
    rig.use(text(name="Other"))
    while rig.waiting:
        rig.reply()
    assert [source.state for source in balanced] == ["acknowledged"] * 3
    assert [source.state for source in lossless] == ["acknowledged", "kept", "kept"]
    removed = [payload for topic, payload in rig.published if topic == "err"]
    assert [b"its route or event was removed" in payload for payload in removed] == [True, True]


def test_a_call_that_runs_when_its_route_goes_ends_as_it_would_have(rigs: Rigs) -> None:
    rig, source = rigs(), Source()
    rig.offer(delivery=source)
    rig.use(text(name="Other"))
    rig.reply(503)
    rig.advance(1)
    rig.reply()
    assert rig.published == [("out", b"ok")]
    assert source.state == "acknowledged"


def test_a_lossless_call_whose_event_is_gone_stays_with_its_source_and_frees_its_room(rigs: Rigs) -> None:
    rig, source = rigs(kept()), Source()
    rig.offer(delivery=source)
    rig.reply(503)
    other = kept().replace("EVENT E ", "EVENT F ")
    rig.use(other)
    rig.advance(1)
    assert source.state == "kept"
    assert rig.statistics.admission.outstanding == 0
    assert rig.statistics.retrying == 0


def test_a_route_that_is_gone_and_back_while_a_call_of_it_runs_goes_on_where_it_was(rigs: Rigs) -> None:
    rig = rigs(text("WITH ORDERED true", route='WITH RATE_LIMIT "1/m"'))
    rig.offer(b"1")
    rig.use(text(name="Other"))
    rig.use(text("WITH ORDERED true", route='WITH RATE_LIMIT "1/m"'))
    rig.offer(b"2")
    rig.advance(100)
    assert rig.bodies == [b"1"]
    rig.reply()
    rig.reply()
    assert rig.bodies == [b"1", b"2"]
    assert (rig.statistics.succeeded, rig.statistics.admission.outstanding) == (2, 0)


def test_a_route_that_is_gone_and_back_when_all_has_ended_begins_again(rigs: Rigs) -> None:
    rig = rigs()
    rig.offer()
    rig.reply()
    rig.use(text(name="Other"))
    rig.use(text(name="Other"))
    rig.use(text())
    assert rig.statistics.succeeded == 0


def test_the_health_of_a_route_that_is_gone_is_not_reported(rigs: Rigs) -> None:
    rig = rigs(text(config="WITH RETRIES 0"))
    rig.offer()
    rig.use(text(name="Other"))
    rig.reply(500)
    assert rig.healths == []


def test_a_reload_that_changes_nothing_for_a_server_keeps_its_connections(rigs: Rigs) -> None:
    rig = rigs()
    rig.use(text("WITH QOS 1"))
    (client,) = rig.network.clients
    assert client.closed == 0
    rig.use(text(config="WITH REQUEST_TIMEOUT 5"))
    assert [one.closed > 0 for one in rig.network.clients] == [True, False]


def test_connections_of_a_replaced_definition_are_closed_once_more_when_its_last_call_has_ended(rigs: Rigs) -> None:
    rig = rigs()
    rig.offer()
    rig.use(text(config="WITH REQUEST_TIMEOUT 5"))
    first, second = rig.network.clients
    assert first.closed == 1
    rig.reply()
    assert (first.closed, second.closed) == (2, 0)


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


def test_a_call_that_waits_for_its_next_attempt_is_given_up_at_once_and_tried_no_more(rigs: Rigs) -> None:
    rig, source = rigs(kept()), Source()
    rig.offer(delivery=source)
    rig.reply(503)
    source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    rig.advance(100)
    assert source.state == "kept"
    assert len(rig.network.seen) == 1
    assert (rig.statistics.admission.outstanding, rig.statistics.retrying) == (0, 0)
    assert rig.statistics.failed == 0


def test_a_call_that_runs_ends_and_those_behind_it_are_given_up(rigs: Rigs) -> None:
    rig = rigs(kept(), workers=1)
    sources = [Source() for _ in range(3)]
    for source in sources:
        rig.offer(delivery=source)
        source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    assert [source.state for source in sources] == ["held", "kept", "kept"]
    rig.reply()
    assert [source.state for source in sources] == ["acknowledged", "kept", "kept"]
    assert len(rig.network.seen) == 1


def test_a_call_that_runs_when_it_is_taken_back_begins_no_further_attempt(rigs: Rigs) -> None:
    rig, source = rigs(kept()), Source()
    rig.offer(delivery=source)
    source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    rig.reply(503)
    rig.advance(100)
    assert len(rig.network.seen) == 1
    assert source.state == "kept"


def test_a_message_that_is_taken_back_while_others_are_parsed_is_given_up_once(rigs: Rigs) -> None:
    rig, source = rigs(text("WITH WHEN '{value.json.v} > 1'", route='WITH RATE_LIMIT "1/h"')), Source(is_bounded=True)
    parsing = rig.mode._routes["R"]._parsing
    rig.run(parsing.acquire())
    rig.offer(b" " * 20_000 + b'{"v": 1}', delivery=source)
    source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    assert source.state == "kept"
    rig.do(parsing.release)
    assert (source.state, rig.statistics.skipped) == ("kept", 0)


def test_a_message_that_waits_for_its_turn_is_given_up(rigs: Rigs) -> None:
    rig = rigs(text(route='WITH RATE_LIMIT "1/h"'))
    sources = [Source(is_bounded=True) for _ in range(3)]
    for source in sources:
        rig.offer(delivery=source)
    for source in sources:
        source.is_dropped = True
    rig.do(rig.mode.drop_calls)
    assert [source.state for source in sources] == ["held", "kept", "kept"]
