"""BATCH_SIZE: which messages become one request, what a refusal does to them, and that none is lost or sent twice."""

import json

import pytest

from amqtt_rest_bridge.engine.stages.batch import Items, batch_key
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, PlaceholderText, parse
from tests.engine.host import DOWN, LATE, Rig, Rigs, Runs, Source, states, text

BODY = 'WITH BODY "{batch}"'
LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'


def batched(event: str, *, body: str = BODY, route: str = "", config: str = "WITH RETRIES 0", name: str = "R") -> str:
    return text(event, body=body, route=route, config=config, name=name)


def failures(rig: Rig) -> list[tuple[str, str]]:
    """Return code and payload of the failures that were published."""
    return [(found["error"]["code"], found["payload"]) for found in rig.failures]


def test_items_one_a_line_hold_what_batch_item_makes_of_each_message(rigs: Rigs) -> None:
    item = "WITH BATCH_SIZE 2 WITH FAILURE_PAYLOAD true WITH BATCH_ITEM 'room,name={topic.2} value={value.json.v}'"
    rig = rigs(batched(item, body='WITH BODY "{batch.lines}" WITH HEADERS ADD Content-Type "text/plain"'))
    sources = rig.offer_all(b"nothing", b'{"v": 21.50}', b'{"v": 2}')
    assert failures(rig) == [("placeholder_unresolved", "nothing")]
    assert rig.bodies == [b"room,name=a value=21.50\nroom,name=a value=2\n"]
    assert states(sources) == "acknowledged held held"


def test_messages_that_are_skipped_are_in_no_batch_and_an_empty_batch_is_never_sent(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2 WITH WHEN '{value.json.v} > 1'"))
    sources = rig.offer_all(b'{"v": 1}', b'{"v": 0}')
    rig.advance(10)
    assert not rig.waiting
    assert (states(sources), rig.statistics.skipped) == ("acknowledged acknowledged", 2)
    rig.offer_all(b'{"v": 2}', b'{"v": 1}', b'{"v": 3}')
    assert rig.bodies == [b'[{"v":2},{"v":3}]']


def test_a_refused_batch_fails_each_of_its_messages(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 3 WITH FAILURE_PAYLOAD true"))
    sources = rig.offer_all(b"1", b"2", b"3")
    rig.reply(400, b"bad")
    assert failures(rig) == [("http_status", "1"), ("http_status", "2"), ("http_status", "3")]
    assert states(sources) == "acknowledged acknowledged acknowledged"
    assert (rig.statistics.failed, rig.statistics.admission.outstanding) == (3, 0)


def test_the_bad_item_of_a_batch_is_found_and_all_others_are_sent(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 8 WITH BATCH_SPLIT true WITH FAILURE_PAYLOAD true"))
    sources = rig.offer_all(*[b"%d" % number for number in range(8)])
    taken: list[int] = []
    while rig.waiting:
        items = json.loads(rig.waiting[0].body or b"")
        taken += [] if 5 in items else items
        rig.reply(422 if 5 in items else 200, b"")
    assert sorted(taken) == [0, 1, 2, 3, 4, 6, 7]
    assert failures(rig) == [("http_status", "5")]
    assert {source.state for source in sources} == {"acknowledged"}
    assert (rig.statistics.failed, rig.statistics.succeeded) == (1, 7)


def test_the_halves_of_a_batch_have_a_place_each_and_hold_each_message_once(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4 WITH BATCH_SPLIT true"), workers=4)
    large = b'"%s"' % (b"x" * 200_000)
    rig.offer_all(large, b"2", b"3", b"4")
    rig.reply(413)
    assert (rig.bodies[1:], rig.statistics.admission.in_flight) == ([b"[%s,2]" % large, b"[3,4]"], 2)
    rig.reply_to_all()
    assert (rig.statistics.admission.in_flight, rig.statistics.succeeded) == (0, 4)


def test_batches_of_an_ordered_event_keep_the_order_over_retries_and_halves(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4 WITH BATCH_SPLIT true WITH ORDERED true", config="WITH RETRIES 3"), workers=4)
    rig.offer_all(*[b"%d" % number for number in range(8)])
    rig.reply(503)
    assert not rig.waiting
    rig.advance(0.5)
    rig.reply(413)
    rig.reply_to_all()
    assert rig.bodies == [b"[0,1,2,3]", b"[0,1,2,3]", b"[0,1]", b"[2,3]", b"[4,5,6,7]"]


def test_a_batch_is_one_request_for_rate_limit_and_signature(rigs: Rigs) -> None:
    rig = rigs(batched('WITH BATCH_SIZE 2 WITH SIGNATURE_SECRET "key"', route='WITH RATE_LIMIT "1/s"'))
    rig.offer_all(*[b"%d" % number for number in range(6)])
    rig.advance(2)
    assert rig.times == [0.0, 1.0, 2.0]
    assert rig.waiting[0].header("X-Hub-Signature-256") is not None


@pytest.mark.parametrize(
    ("body", "most", "payloads", "sizes"),
    [
        pytest.param("{batch}", 100, [12, 12, 62, 3], [2, 1, 1], id="items"),
        pytest.param("[{batch},{batch}]", 220, [32, 32, 32, 32], [2, 2], id="a body larger than its items"),
    ],
)
def test_a_batch_holds_no_more_than_max_body_bytes(
    rigs: Rigs, body: str, most: int, payloads: list[int], sizes: list[int]
) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 4", body=f"WITH BODY '{body}'"), max_body_bytes=most)
    sources = rig.offer_all(*[b'"%s"' % (b"x" * (size - 2)) for size in payloads])
    rig.advance(1)
    rig.reply_to_all()
    assert [(sent or b"").count(b'"') // 2 // body.count("{batch}") for sent in rig.bodies] == sizes
    assert all(len(sent or b"") <= most for sent in rig.bodies)
    assert {source.state for source in sources} == {"acknowledged"}


def test_lossless_messages_of_a_batch_are_sent_with_one_key_until_they_are_taken(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", route=LOSSLESS))
    sources = rig.offer_all(b"1", b"2")
    rig.fail(LATE)
    rig.advance(1)
    rig.reply()
    assert {sent.header("Idempotency-Key") for sent in rig.network.seen} == {batch_key(["1", "2"])}
    assert states(sources) == "acknowledged acknowledged"


def test_calls_of_events_without_batches_go_on_beside_them(rigs: Rigs) -> None:
    other = '    ADD EVENT F WITH SOURCE_TOPIC "one" WITH METHOD "GET" WITH ENDPOINT "/one"'
    rig = rigs(batched("WITH BATCH_SIZE 9") + other, workers=1)
    rig.offer(b"1")
    rig.offer(topic="one")
    assert [sent.request.url for sent in rig.waiting] == ["http://server.test/one"]


@pytest.mark.parametrize(
    ("event", "status", "ends"),
    [
        pytest.param("", None, [(2, [], 0.25)] * 2, id="one request"),
        pytest.param("", 503, [(2, [503], 0.5)] * 2 + [(2, [503, 200], 0.75)] * 2, id="tried again"),
        pytest.param(
            "WITH BATCH_SPLIT true", 400, [(2, [400], 0.5)] * 2 + [(1, [400, 200], 0.75)] * 2, id="sent as two halves"
        ),
    ],
)
def test_the_run_of_a_message_has_the_requests_of_the_batches_that_it_was_sent_in(
    rigs: Rigs, event: str, status: int | None, ends: list[tuple[int, list[int], float]]
) -> None:
    records = Runs()
    rig = rigs(batched(f"WITH BATCH_SIZE 2 {event}", config="WITH RETRIES 1"), records=records)
    rig.offer_all(b"1", b"2")
    if status is not None:
        rig.reply(status, elapsed=0.5)
        assert rig.statistics.retrying == 2
        rig.advance(1)
    while rig.waiting:
        rig.reply(elapsed=0.25)
    assert [(run.together, [one.status for one in run.attempts], run.took) for run in records.calls] == ends
    assert len({run.number for run in records.calls}) == 2
    assert rig.statistics.retrying == 0


# Keys that say which messages are one batch.


def numbered(rig: Rig, *numbers: tuple[int, int]) -> None:
    """Offer messages that the spool has numbered: each with the number of its group, and its own in that."""
    for group, own in numbers:
        source = Source(f"00000000-0000-4000-8000-{1 << 47 | group << 16 | own:012x}")
        rig.offer(b"%d%d" % (group, own), delivery=source)


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
    rig.offer_all(b"1", b"2", b"3")
    assert rig.bodies == [b"[1,2,3]"]


# Reloads, and sources that take messages back.


def test_an_open_batch_is_sent_at_once_without_the_calls_that_are_taken_back(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 9", route=LOSSLESS))
    source, _ = rig.offer_all(b"1", b"2")
    rig.take_back(source)
    assert (source.state, rig.bodies) == ("kept", [b"[2]"])


ALL = "WITH BODY '{\"all\": {batch}}'"
PACED = 'WITH RATE_LIMIT "1/s"'


@pytest.mark.parametrize(
    ("before", "status", "after", "more", "bodies"),
    [
        pytest.param(
            batched("WITH BATCH_SIZE 4"), None, batched("WITH BATCH_SIZE 4 WITH QOS 1"), [b"4"], [b"[1,2,3,4]"],
            id="the same form: the batch stays open",
        ),
        pytest.param(
            batched("WITH BATCH_SIZE 2", route=LOSSLESS), None, batched("WITH BATCH_SIZE 3", body=ALL, route=LOSSLESS),
            [], [b"[1,2]", b'{"all": [3]}'], id="another form: what waits is gathered again",
        ),
        pytest.param(
            batched("WITH BATCH_SIZE 3", config="WITH RETRIES 1"), 503,
            batched("WITH BATCH_SIZE 3", body=ALL, config="WITH RETRIES 1"), [], [b"[1,2,3]", b"[1,2,3]"],
            id="what has begun ends by its definition",
        ),
        pytest.param(
            text("WITH ORDERED true", route=PACED), None, batched("WITH BATCH_SIZE 2", route=PACED), [],
            [b"1", b"[2]", b"[3]"], id="from ORDERED to BATCH_SIZE: the messages of a line go on",
        ),
    ],
)  # fmt: skip
def test_a_reload_decides_what_becomes_one_request(
    rigs: Rigs, before: str, status: int | None, after: str, more: list[bytes], bodies: list[bytes]
) -> None:
    rig = rigs(before, workers=1)
    sources = rig.offer_all(b"1", b"2", b"3")
    if status is not None:
        rig.reply(status)
    rig.use(after)
    sources += rig.offer_all(*more)
    for _ in range(3):
        rig.reply_to_all()
        rig.advance(1)
    assert rig.bodies == bodies
    assert {source.state for source in sources} == {"acknowledged"}


def test_a_batch_is_sent_when_its_time_is_over(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 100 WITH BATCH_SECONDS 2"))
    rig.offer(b"1")
    rig.advance(1)
    rig.offer(b"2")
    rig.advance(0.9)
    assert not rig.waiting
    rig.advance(0.2)
    assert rig.bodies == [b"[1,2]"]


def test_after_a_reload_without_batch_size_each_message_of_a_waiting_batch_has_its_own_retries(rigs: Rigs) -> None:
    rig = rigs(batched("WITH BATCH_SIZE 2", config="WITH RETRIES 1"), workers=1)
    rig.offer_all(b"1", b"2", b"3", b"4")
    rig.use(text(config="WITH RETRIES 1"))
    rig.reply()
    for _ in range(4):
        rig.fail(DOWN)
        rig.advance(1)
    assert {body: rig.bodies.count(body) for body in rig.bodies[1:]} == {b"3": 2, b"4": 2}


# Items.

ARRAY, LINES = (parse(name, Place.TEXT, Mode.BATCH) for name in ("{batch}", "{batch.lines}"))
NDJSON = parse("{batch.lines}", Place.JSON, Mode.BATCH)


@pytest.mark.parametrize(
    ("body", "payload", "item"),
    [
        pytest.param(NDJSON, b'{\n "a": [1.0, 2] }', b'{"a":[1.0,2]}', id="JSON is one line"),
        pytest.param(NDJSON, b"a\nb", b'"a\\nb"', id="other text is a string"),
        pytest.param(ARRAY, b"NaN", b'"NaN"', id="an array is JSON in any body"),
        pytest.param(ARRAY, b"", b'""', id="nothing"),
        pytest.param(ARRAY, b"[" * 5000, b'"' + b"[" * 5000 + b'"', id="nested too deeply"),
        pytest.param(LINES, b"a b=1\r\n", b"a b=1", id="a line"),
    ],
)
def test_an_item_cannot_change_the_shape_of_its_batch(body: PlaceholderText, payload: bytes, item: bytes) -> None:
    assert Items(None, body).make(MessageValues(payload, 0.0, topic="t")) == item


@pytest.mark.parametrize("payload", [b"a\nb", b"a\rb", b"\xff"])
def test_what_is_not_a_line_of_text_fails_its_message(payload: bytes) -> None:
    with pytest.raises(CallError):
        Items(None, LINES).make(MessageValues(payload, 0.0, topic="t"))


def test_the_key_of_a_batch_is_the_same_for_the_same_messages_in_their_order_only() -> None:
    assert batch_key(["a", "b"]) == batch_key(iter(("a", "b")))
    assert len({batch_key(keys) for keys in (["a"], ["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"])}) == 5
