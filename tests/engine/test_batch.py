"""BATCH_SIZE: which messages become one request, what a refusal does to them, and that none is lost or sent twice."""

import json
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.engine.stages.batch import Items, batch_key
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, PlaceholderText, parse
from tests.engine.host import DOWN, LATE, Rig, Runs, Source, text

Rigs = Callable[..., Rig]

BODY = 'WITH BODY "{batch}"'
LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


def batched(event: str, *, body: str = BODY, route: str = "", config: str = "WITH RETRIES 0") -> str:
    return text(event, body=body, route=route, config=config)


def offer(rig: Rig, *payloads: bytes) -> list[Source]:
    sources = [Source(payload.decode("latin-1")) for payload in payloads]
    for payload, source in zip(payloads, sources, strict=True):
        rig.offer(payload, delivery=source)
    return sources


def states(sources: list[Source]) -> str:
    return " ".join(source.state for source in sources)


def codes(rig: Rig) -> list[tuple[str, str]]:
    """Return code and payload of the failures that were published."""
    return [(found["error"]["code"], found["payload"]) for found in (json.loads(one) for _, one in rig.published)]


def test_messages_become_one_request_whose_response_is_published_once(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3"))
    sources = offer(rig, b'{ "a": 1.50 }', b"text", b"[]", b"4")
    assert rig.bodies == [b'[{"a":1.50},"text",[]]']
    assert rig.statistics.admission.in_flight == 1
    rig.reply()
    assert rig.published == [("out", b"ok")]
    assert states(sources) == "acknowledged acknowledged acknowledged held"
    rig.advance(1)
    rig.reply()
    assert rig.bodies[1:] == [b"[4]"]
    assert (rig.statistics.succeeded, rig.statistics.admission.outstanding) == (4, 0)


def test_a_batch_is_sent_when_its_time_is_over(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 100 WITH BATCH_SECONDS 2"))
    offer(rig, b"1")
    rig.advance(1)
    offer(rig, b"2")
    rig.advance(0.9)
    assert not rig.waiting
    rig.advance(0.2)
    assert rig.bodies == [b"[1,2]"]


def test_items_one_a_line_hold_what_batch_item_makes_of_each_message(rigs: Rigs) -> None:
    item = "WITH BATCH_SIZE 2 WITH FAILURE_PAYLOAD true WITH BATCH_ITEM 'room,name={topic.2} value={value.json.v}'"
    rig = rigs(batched(item, body='WITH BODY "{batch.lines}" WITH HEADERS ADD Content-Type "text/plain"'))
    sources = offer(rig, b"nothing", b'{"v": 21.50}', b'{"v": 2}')
    assert codes(rig) == [("placeholder_unresolved", "nothing")]
    assert rig.bodies == [b"room,name=a value=21.50\nroom,name=a value=2\n"]
    assert states(sources) == "acknowledged held held"


def test_messages_that_are_skipped_are_in_no_batch_and_an_empty_batch_is_never_sent(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH WHEN '{value.json.v} > 1'"))
    sources = offer(rig, b'{"v": 1}', b'{"v": 0}')
    rig.advance(10)
    assert not rig.waiting
    assert (states(sources), rig.statistics.skipped) == ("acknowledged acknowledged", 2)
    offer(rig, b'{"v": 2}', b'{"v": 1}', b'{"v": 3}')
    assert rig.bodies == [b'[{"v":2},{"v":3}]']


def test_a_refused_batch_fails_each_of_its_messages(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3 WITH FAILURE_PAYLOAD true"))
    sources = offer(rig, b"1", b"2", b"3")
    rig.reply(400, b"bad")
    assert codes(rig) == [("http_status", "1"), ("http_status", "2"), ("http_status", "3")]
    assert states(sources) == "acknowledged acknowledged acknowledged"
    assert (rig.statistics.failed, rig.statistics.admission.outstanding) == (3, 0)


def test_the_bad_item_of_a_batch_is_found_and_all_others_are_sent(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 8 WITH BATCH_SPLIT true WITH FAILURE_PAYLOAD true"))
    sources = offer(rig, *[b"%d" % number for number in range(8)])
    taken: list[int] = []
    while rig.waiting:
        items = json.loads(rig.waiting[0].body or b"")
        taken += [] if 5 in items else items
        rig.reply(422 if 5 in items else 200, b"")
    assert sorted(taken) == [0, 1, 2, 3, 4, 6, 7]
    assert [one for one in rig.broker.published if one[0].topic == "err"] != []
    assert {source.state for source in sources} == {"acknowledged"}
    assert (rig.statistics.failed, rig.statistics.succeeded) == (1, 7)


def test_the_halves_of_a_batch_have_a_place_each(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4 WITH BATCH_SPLIT true"), workers=4)
    offer(rig, b"1", b"2", b"3", b"4")
    rig.reply(413)
    assert (rig.bodies[1:], rig.statistics.admission.in_flight) == ([b"[1,2]", b"[3,4]"], 2)
    rig.reply()
    rig.reply()
    assert (rig.statistics.admission.in_flight, rig.statistics.succeeded) == (0, 4)


def test_the_halves_of_a_batch_of_large_messages_hold_each_message_once(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH BATCH_SPLIT true"))
    large = b'"%s"' % (b"x" * 200_000)
    offer(rig, large, b"2")
    rig.reply(413)
    assert rig.bodies[1:] == [b"[%s]" % large, b"[2]"]


def test_batches_of_an_ordered_event_keep_the_order_over_retries_and_halves(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4 WITH BATCH_SPLIT true WITH ORDERED true", config="WITH RETRIES 3"), workers=4)
    offer(rig, *[b"%d" % number for number in range(8)])
    rig.reply(503)
    assert not rig.waiting
    rig.advance(0.5)
    rig.reply(413)
    for _ in range(3):
        rig.reply()
    assert rig.bodies == [b"[0,1,2,3]", b"[0,1,2,3]", b"[0,1]", b"[2,3]", b"[4,5,6,7]"]


def test_a_batch_is_one_request_for_rate_limit_and_signature(rigs: Rigs) -> None:
    rig = rigs(batched('WITH BATCH_SIZE 2 WITH SIGNATURE_SECRET "key"', route='WITH RATE_LIMIT "1/s"'))
    offer(rig, *[b"%d" % number for number in range(6)])
    rig.advance(2)
    assert [sent.at for sent in rig.network.seen] == [0.0, 1.0, 2.0]
    assert rig.waiting[0].header("X-Hub-Signature-256") is not None


def test_a_batch_holds_no_more_than_max_body_bytes(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 100"), max_body_bytes=100)
    offer(rig, b'"%s"' % (b"x" * 10), b'"%s"' % (b"y" * 10), b'"%s"' % (b"z" * 60), b"1")
    rig.advance(1)
    assert rig.bodies == [b'["%s","%s"]' % (b"x" * 10, b"y" * 10), b'["%s"]' % (b"z" * 60), b"[1]"]


def test_a_batch_whose_body_is_larger_than_its_items_is_sent_in_parts(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4", body="WITH BODY '[{batch},{batch}]'"), max_body_bytes=220)
    sources = offer(rig, *[b'"%s"' % (one * 30) for one in (b"a", b"b", b"c", b"d")])
    while rig.waiting:
        rig.reply()
    assert [len(json.loads(body or b"")[0]) for body in rig.bodies] == [2, 2]
    assert {source.state for source in sources} == {"acknowledged"}


def test_a_stop_sends_the_open_batch_and_leaves_a_lossless_one_with_its_source(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 9"), text("WITH BATCH_SIZE 9", body=BODY, route=LOSSLESS, name="L"))
    (source,) = offer(rig, b"1")
    rig.do(rig.mode.stop)
    assert len(rig.waiting) == 1
    rig.reply()
    assert source.state == "held"
    assert rig.published == [("out", b"ok")]


def test_lossless_messages_of_a_batch_are_sent_with_one_key_until_they_are_taken(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", route=LOSSLESS))
    sources = offer(rig, b"1", b"2")
    rig.fail(LATE)
    rig.advance(1)
    rig.reply()
    assert {sent.header("Idempotency-Key") for sent in rig.network.seen} == {batch_key(["1", "2"])}
    assert states(sources) == "acknowledged acknowledged"


def test_messages_in_a_batch_count_against_overload_bytes_until_it_has_ended(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", route='WITH OVERLOAD_BYTES "4"'))
    for payload in (b"11", b"22", b"33"):
        rig.offer(payload)
    assert (rig.statistics.refused, rig.statistics.admission.bytes) == (1, 4)
    rig.reply()
    assert rig.statistics.admission.bytes == 0


def test_calls_of_events_without_batches_go_on_beside_them(rigs: Rigs) -> None:
    other = '    ADD EVENT F WITH SOURCE_TOPIC "one" WITH METHOD "GET" WITH ENDPOINT "/one"'
    rig = rigs(batched("WITH BATCH_SIZE 9") + other, workers=1)
    offer(rig, b"1")
    rig.offer(topic="one")
    assert [sent.request.url for sent in rig.waiting] == ["http://server.test/one"]


def test_the_run_of_a_message_names_the_batch_that_it_was_sent_in(rigs: Rigs) -> None:
    records = Runs()
    rig = rigs(batched("WITH BATCH_SIZE 3"), records=records)
    offer(rig, b"1", b"2", b"3")
    rig.reply(200, elapsed=0.5)
    assert [(run.together, run.took, run.attempted) for run in records.calls] == [(3, 0.5, 1)] * 3
    assert len({run.number for run in records.calls}) == 3


def test_each_message_of_a_batch_that_is_tried_again_is_noted(rigs: Rigs) -> None:
    records = Runs()
    rig = rigs(batched("WITH BATCH_SIZE 2", config="WITH RETRIES 1"), records=records)
    offer(rig, b"1", b"2")
    rig.reply(503)
    assert [(run.outcome, run.status, run.attempted) for run in records.calls] == [("retrying", 503, 1)] * 2
    assert rig.statistics.retrying == 2
    rig.advance(1)
    rig.reply()
    assert [(run.outcome, run.attempted) for run in records.calls[2:]] == [("succeeded", 2)] * 2
    assert rig.statistics.retrying == 0


def test_the_runs_of_both_halves_have_the_request_of_the_whole_batch(rigs: Rigs) -> None:
    records = Runs()
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH BATCH_SPLIT true"), records=records)
    offer(rig, b"1", b"2")
    rig.reply(400, elapsed=0.5)
    rig.reply(200, elapsed=0.25)
    rig.reply(200, elapsed=0.25)
    halves = records.calls[2:]
    assert [([one.status for one in run.attempts], run.took) for run in halves] == [([400, 200], 0.75)] * 2


# Keys that say which messages are one batch.


def numbered(rig: Rig, *numbers: tuple[int, int]) -> list[Source]:
    """Offer messages that the spool has numbered: each with the number of its group, and its own in that."""
    sources = [Source(f"00000000-0000-4000-8000-{1 << 47 | group << 16 | own:012x}") for group, own in numbers]
    for (group, own), source in zip(numbers, sources, strict=True):
        rig.offer(b"%d%d" % (group, own), delivery=source)
    return sources


@pytest.mark.parametrize(
    ("numbers", "bodies"),
    [
        pytest.param([(1, 0), (1, 1), (1, 2), (2, 0)], [b"[10,11,12]"], id="a whole group"),
        pytest.param([(1, 0), (1, 1), (2, 0), (2, 1)], [b"[10,11]"], id="a group whose time was over"),
        pytest.param([(1, 1), (1, 2), (2, 0)], [b"[11,12]"], id="one whose first message has ended"),
        pytest.param([(1, 0), (2, 0), (3, 0)], [b"[10]", b"[20]"], id="groups of one"),
    ],
)
def test_a_batch_holds_the_messages_of_one_group(
    rigs: Rigs, numbers: list[tuple[int, int]], bodies: list[bytes]
) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3", route=LOSSLESS), keys_have_groups=True)
    numbered(rig, *numbers)
    assert rig.bodies == bodies


def test_messages_that_come_again_after_a_kill_are_the_batch_that_they_were(rigs: Rigs) -> None:
    first, second = (rigs(batched("WITH BATCH_SIZE 3", route=LOSSLESS), keys_have_groups=True) for _ in range(2))
    numbered(first, (1, 0), (1, 1))
    first.advance(1)
    numbered(second, (1, 0), (1, 1), (2, 0))
    (before,), (after,) = first.waiting, second.waiting
    assert (before.body, before.header("Idempotency-Key")) == (after.body, after.header("Idempotency-Key"))


def test_messages_without_such_keys_are_in_any_batch(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3"), keys_have_groups=True)
    offer(rig, b"1", b"2", b"3")
    assert rig.bodies == [b"[1,2,3]"]


# Reloads, and sources that take messages back.


def test_a_reload_that_keeps_the_form_of_a_batch_keeps_it_open(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3"))
    offer(rig, b"1")
    rig.use(batched("WITH BATCH_SIZE 3 WITH QOS 1"))
    offer(rig, b"2", b"3")
    assert rig.bodies == [b"[1,2,3]"]


def test_a_reload_that_changes_the_form_of_a_batch_gathers_what_waits_again(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", route=LOSSLESS), workers=1)
    sources = offer(rig, b"1", b"2", b"3", b"4", b"5")
    rig.use(batched("WITH BATCH_SIZE 3", body="WITH BODY '{\"all\": {batch}}'", route=LOSSLESS))
    rig.reply()
    rig.reply()
    assert rig.bodies == [b"[1,2]", b'{"all": [3,4,5]}']
    assert {source.state for source in sources} == {"acknowledged"}


def test_after_a_reload_without_batch_size_each_message_of_a_waiting_batch_has_its_own_retries(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", config="WITH RETRIES 1"), workers=1)
    offer(rig, b"1", b"2", b"3", b"4")
    rig.use(text(config="WITH RETRIES 1"))
    rig.reply()
    for _ in range(4):
        rig.fail(DOWN)
        rig.advance(1)
    assert {body: rig.bodies.count(body) for body in rig.bodies[1:]} == {b"3": 2, b"4": 2}


def test_after_a_reload_from_ordered_to_batch_size_the_messages_of_a_line_go_on(rigs: Rigs) -> None:
    rig = rigs(text("WITH ORDERED true", route='WITH RATE_LIMIT "1/s"'))
    sources = offer(rig, b"1", b"2", b"3")
    rig.use(batched("WITH BATCH_SIZE 2", route='WITH RATE_LIMIT "1/s"'))
    for _ in range(3):
        rig.reply()
        rig.advance(1)
    assert rig.bodies == [b"1", b"[2]", b"[3]"]
    assert states(sources) == "acknowledged acknowledged acknowledged"


def test_a_batch_that_has_begun_ends_by_its_definition(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", config="WITH RETRIES 3"))
    offer(rig, b"1", b"2")
    rig.use(batched("WITH BATCH_SIZE 2", body="WITH BODY '{\"all\": {batch}}'", config="WITH RETRIES 3"))
    rig.reply(503)
    rig.advance(1)
    assert rig.bodies == [b"[1,2]", b"[1,2]"]


@pytest.mark.parametrize("dropped", [{0}, {1}, {2}, {0, 1}, {0, 1, 2}])
def test_the_calls_of_a_batch_that_were_not_taken_back_go_on_without_the_others(rigs: Rigs, dropped: set[int]) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3", route=LOSSLESS))
    sources = offer(rig, b"0", b"1", b"2")
    rig.reply(503)
    for number in dropped:
        sources[number].is_dropped = True
    rig.do(rig.mode.drop_calls)
    rig.advance(1)
    left = [number for number in range(3) if number not in dropped]
    assert rig.bodies[1:] == ([json.dumps(left, separators=(",", ":")).encode()] if left else [])
    for _ in rig.bodies[1:]:
        rig.reply()
    assert [source.state for source in sources] == ["kept" if one in dropped else "acknowledged" for one in range(3)]
    assert rig.statistics.admission.outstanding == 0


@pytest.mark.parametrize("dropped", [0, 1])
def test_the_call_that_is_left_of_a_refused_batch_is_not_halved(rigs: Rigs, dropped: int) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH BATCH_SPLIT true", route=LOSSLESS))
    sources = offer(rig, b"0", b"1")
    sources[dropped].is_dropped = True
    rig.reply(413)
    rig.advance(0)
    rig.reply()
    assert rig.bodies == [b"[0,1]", b"[%d]" % (1 - dropped)]
    assert [sources[dropped].state, sources[1 - dropped].state] == ["kept", "acknowledged"]
    assert (rig.statistics.admission.outstanding, rig.statistics.retrying) == (0, 0)


def test_calls_of_an_open_batch_that_are_taken_back_are_given_up_at_once_and_the_others_are_sent(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 9", route=LOSSLESS))
    sources = offer(rig, b"1", b"2")
    sources[0].is_dropped = True
    rig.do(rig.mode.drop_calls)
    assert rig.bodies == [b"[2]"]
    assert states(sources) == "kept held"


def test_a_batch_behind_another_one_of_its_line_goes_on_without_its_first_call(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH ORDERED true", route=LOSSLESS))
    sources = offer(rig, b"1", b"2", b"3", b"4", b"5", b"6")
    sources[2].is_dropped = True
    rig.do(rig.mode.drop_calls)
    for _ in range(3):
        rig.reply()
    assert rig.bodies == [b"[1,2]", b"[4]", b"[5,6]"]
    assert states(sources) == "acknowledged acknowledged kept acknowledged acknowledged acknowledged"


# Items.

BODIES = {name: parse(name, Place.TEXT, Mode.BATCH) for name in ("{batch}", "{batch.lines}")}
NDJSON = parse("{batch.lines}", Place.JSON, Mode.BATCH)


@pytest.mark.parametrize(
    ("body", "payload", "item"),
    [
        pytest.param(NDJSON, b'{\n "a": [1.0, 2] }', b'{"a":[1.0,2]}', id="JSON is one line"),
        pytest.param(NDJSON, b"a\nb", b'"a\\nb"', id="other text is a string"),
        pytest.param(BODIES["{batch}"], b"NaN", b'"NaN"', id="an array is JSON in any body"),
        pytest.param(BODIES["{batch}"], b"", b'""', id="nothing"),
        pytest.param(BODIES["{batch}"], b"[" * 5000, b'"' + b"[" * 5000 + b'"', id="nested too deeply"),
        pytest.param(BODIES["{batch.lines}"], b"a b=1\r\n", b"a b=1", id="a line"),
    ],
)
def test_an_item_cannot_change_the_shape_of_its_batch(body: PlaceholderText, payload: bytes, item: bytes) -> None:
    assert Items(None, body).make(MessageValues(payload, 0.0, topic="t")) == item


@pytest.mark.parametrize("payload", [b"a\nb", b"a\rb", b"\xff"])
def test_what_is_not_a_line_of_text_fails_its_message(payload: bytes) -> None:
    with pytest.raises(CallError):
        Items(None, BODIES["{batch.lines}"]).make(MessageValues(payload, 0.0, topic="t"))


def test_the_key_of_a_batch_is_the_same_for_the_same_messages_in_their_order_only() -> None:
    assert batch_key(["a", "b"]) == batch_key(iter(("a", "b")))
    assert len({batch_key(keys) for keys in (["a"], ["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"])}) == 5
