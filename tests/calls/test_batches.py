"""Which calls become one request, without threads and clocks; and the numbers that keep a batch together on disk."""

import itertools

from amqtt_rest_bridge.calls.batches import Gathering, carrying, halve
from amqtt_rest_bridge.calls.call import OpenCall
from amqtt_rest_bridge.calls.stages import prepare
from amqtt_rest_bridge.model import ClientEvent, Message, Method, RestApiConfig, Route
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from amqtt_rest_bridge.routing.calls import BatchNumbers

ENDPOINT = parse("/", Place.ENDPOINT, Mode.CLIENT)
EVENT = ClientEvent("E", "in", Method.POST, ENDPOINT, parse("{batch}", Place.JSON, Mode.BATCH), batch_size=3)
ROUTE = Route("R", RestApiConfig(base_address="http://t", enable_client=True), (EVENT,))
PREPARED = prepare(ROUTE, EVENT, max_body_bytes=1000)
RUN = "00000000-0000-4000-8000-"


def call(number: int, item: bytes = b"1", key: int | None = None) -> OpenCall:
    made = OpenCall(number, PREPARED, Message("in", item, 1.0), None if key is None else f"{RUN}{key:012x}")
    made.item = item
    return made


def batch_of(first: OpenCall) -> list[int]:
    return [first.id, *[rider.id for rider in first.riders or ()]]


def gathered(gathering: Gathering, calls: list[OpenCall]) -> list[list[int]]:
    batches = [batch_of(first) for one in calls for first in gathering.add(one)]
    return batches if gathering.is_empty else [*batches, batch_of(gathering.take(gathering.number))]


def test_a_batch_is_closed_by_its_size() -> None:
    gathering = Gathering(3, 1000, has_groups=False)
    assert gathered(gathering, [call(number) for number in range(7)]) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_batch_is_closed_before_its_items_are_too_large_and_a_large_item_is_alone() -> None:
    gathering = Gathering(100, 10, has_groups=False)
    sizes = [4, 4, 4, 30, 1]
    assert gathered(gathering, [call(number, b"x" * size) for number, size in enumerate(sizes)]) == [
        [0, 1], [2], [3], [4],
    ]  # fmt: skip


def test_what_was_stored_together_is_a_batch_whatever_comes_behind_it() -> None:
    numbers, groups = BatchNumbers(3, 10.0), itertools.count()
    times = [0.0, 1.0, 2.0, 3.0, 4.0, 11.5, 12.0]
    calls = [call(index, key=numbers.next(now, groups)) for index, now in enumerate(times)]
    first = gathered(Gathering(3, 1000, has_groups=True), calls)
    assert first == [[0, 1, 2], [3, 4], [5, 6]]
    again = gathered(Gathering(3, 1000, has_groups=True), calls[3:])
    assert again == first[1:]


def test_a_clock_that_is_set_back_begins_another_batch() -> None:
    numbers, groups = BatchNumbers(100, 10.0), itertools.count()
    given = [numbers.next(now, groups) >> 16 for now in (100.0, 101.0, 50.0, 51.0)]
    assert given[0] == given[1] != given[2] == given[3]


def test_numbers_of_batches_are_never_those_of_other_messages() -> None:
    numbers, groups = BatchNumbers(2, 10.0), itertools.count()
    given = [numbers.next(0.0, groups) for _ in range(1000)]
    assert len(set(given)) == 1000
    assert min(given) >= 1 << 47
    assert max(given) < 1 << 48


def test_halves_of_a_batch_keep_its_order() -> None:
    first, *first.riders = [call(number) for number in range(5)]
    first.line, first.tries = ("R", "E", ""), 3
    second = halve(first)
    assert (batch_of(first), batch_of(second)) == ([0, 1, 2], [3, 4])
    assert (second.line, first.tries, second.tries) == (first.line, 0, 0)


def test_a_batch_whose_first_call_leaves_is_carried_by_the_next_one() -> None:
    first, *rest = [call(number) for number in range(3)]
    first.line, first.tries = ("R", "E", ""), 2
    assert batch_of(carrying(rest, first)) == [1, 2]
    assert (rest[0].line, rest[0].tries) == (first.line, 2)
