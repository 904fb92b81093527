"""Questions to the broker: one at a time, shared by all that ask, and asked again when an answer takes long."""

from amqtt_rest_bridge.admin.numbers import BridgeNumbers, RouteNumbers
from amqtt_rest_bridge.bridge.questions import REMIND_SECONDS, NumbersCache
from amqtt_rest_bridge.link.admin_frames import NumbersPart, WantNumbers

BROKER = BridgeNumbers(0, 0, [])


class Asked:
    def __init__(self) -> None:
        self.sent: list[bool] = []
        self.number = 0
        self.woken: list[str] = []
        self.now = 100.0
        self.numbers = NumbersCache(self._send, lambda: self.now)

    def _send(self, frame: WantNumbers) -> None:
        self.sent.append(frame.statuses)
        self.number = frame.number

    def ask(self, name: str, *, statuses: bool) -> None:
        self.numbers.ask(lambda: self.woken.append(name), statuses=statuses)

    def answer(self, *names: str, broker: BridgeNumbers | None = BROKER, number: int | None = None) -> None:
        self.now += 1
        routes = [RouteNumbers(name, "Green", {}, 0, 0, 0, 0, 0, 0, 0, None, None, None, None) for name in names]
        self.numbers.take(NumbersPart(self.number if number is None else number, routes, broker))


def test_those_that_ask_while_a_question_is_on_its_way_share_the_answer() -> None:
    asked = Asked()
    asked.ask("first", statuses=True)
    asked.ask("second", statuses=False)
    assert asked.sent == [True]
    asked.answer()
    assert (asked.sent, asked.woken) == ([True], ["first", "second"])


def test_an_answer_without_statuses_is_none_for_those_that_want_them() -> None:
    asked = Asked()
    asked.ask("totals", statuses=False)
    asked.ask("page", statuses=True)
    asked.answer("R")
    assert (asked.sent, asked.woken) == ([False, True], ["totals"])
    assert asked.numbers.fresh(100.0, statuses=True) is None
    asked.answer("R")
    assert asked.woken == ["totals", "page"]
    asked.ask("totals", statuses=False)
    asked.answer("R")
    assert asked.numbers.fresh(102.0, statuses=True) is not None  # what came since has not taken its place


def test_the_parts_of_an_answer_are_put_together_by_name() -> None:
    asked = Asked()
    asked.ask("one", statuses=False)
    asked.answer("b", "C", broker=None)
    assert asked.numbers.fresh(0.0, statuses=False) is None
    asked.answer("a")
    numbers = asked.numbers.newest
    assert numbers is not None
    assert list(numbers.routes) == ["a", "b", "C"]


def test_a_question_that_is_not_answered_is_asked_again_after_a_while() -> None:
    asked = Asked()
    asked.ask("one", statuses=True)
    asked.numbers.remind()
    assert asked.sent == [True]
    asked.now += 2 * REMIND_SECONDS
    asked.numbers.remind()
    assert asked.sent == [True, True]


def test_the_parts_of_two_answers_to_one_question_make_a_whole_one() -> None:
    asked = Asked()
    asked.ask("one", statuses=True)
    asked.answer("a", "b", broker=None)
    asked.now += 2 * REMIND_SECONDS
    asked.numbers.remind()
    asked.answer("a", "b", broker=None)
    asked.answer("c")
    numbers = asked.numbers.newest
    assert numbers is not None
    assert list(numbers.routes) == ["a", "b", "c"]


def test_what_is_left_of_an_answer_belongs_not_to_the_next_one() -> None:
    asked = Asked()
    asked.ask("one", statuses=True)
    asked.answer("a", "b")
    first = asked.number
    asked.answer("b", number=first)
    asked.ask("two", statuses=True)
    asked.answer("b", number=first)
    assert asked.woken == ["one"]
    asked.answer("c")
    numbers = asked.numbers.newest
    assert (asked.woken, numbers and list(numbers.routes)) == (["one", "two"], ["c"])
