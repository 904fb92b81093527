"""Records of a bridge process while routes and followers come and go, and callers send what no endpoint takes."""

from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge.http_server import Request, Response
from amqtt_rest_bridge.link.admin_frames import LiveRecords, WantLive
from amqtt_rest_bridge.model import Capture, Route, RunIds
from amqtt_rest_bridge.records.bridge_records import LONGEST_METHOD, BridgeRecords, Failure, RawRequest, ServedEvent
from amqtt_rest_bridge.records.values import Record, RunQuery
from tests.support.server_mode import event, route

REQUEST: Final = Request("id-1", "POST", "/hooks", "", {})
FINE: Final = Response("200 OK")
FULL: Final = "overloaded", "there is no room", "wait"
ROUTE: Final = route(event())


class Recorded:
    """Records whose timers a test calls: `meanwhile` runs when one is set."""

    def __init__(self) -> None:
        self.shown: list[Record] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._due: list[Callable[[], None]] = []
        self.records = BridgeRecords(RunIds(), Capture.NONE, self._set, lambda _: None, lambda _, __: True, self._show)
        self.records.keep([ROUTE])

    def note(self, of: Route = ROUTE, failure: Failure | None = None) -> None:
        """Record a request as its endpoint does."""
        served = ServedEvent(of.name, "E", "POST /hooks")
        about = (of, of.server_events[0]), served, "id-1", None, "POST", "/hooks", "200 OK", failure, 0.1
        raw = RawRequest(1.0, "request", *about)
        if failure is None and not self.records.takes_all:
            self.records.recent(of.name).append(raw)
        else:
            self.records.request(raw, REQUEST, FINE, None, 1.0)

    def look(self) -> None:
        """Run the timers that are set."""
        due, self._due = self._due, []
        for call in due:
            call()

    def _set(self, _: float, call: Callable[[], None]) -> None:
        self._due.append(call)
        self.meanwhile()

    def _show(self, live: LiveRecords) -> None:
        self.shown += live.records


def test_a_follower_sees_good_answers_whenever_the_one_before_has_left() -> None:
    recorded = Recorded()
    recorded.records.handle(WantLive(on=True))
    recorded.note()
    recorded.meanwhile = lambda: recorded.records.handle(WantLive(on=False))  # on another thread, during a look
    recorded.look()
    recorded.meanwhile = lambda: None
    assert not recorded.records.takes_all

    recorded.shown.clear()
    recorded.records.handle(WantLive(on=True))
    recorded.note()
    recorded.look()
    assert [one.route for one in recorded.shown] == [ROUTE.name]


def test_a_failure_of_a_route_that_a_reload_removes_meanwhile_is_recorded_nowhere() -> None:
    recorded = Recorded()

    class Leaving(str):
        """The name of a route that is removed once it was found."""

        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            found = str.__eq__(self, str(other))
            recorded.records.keep([])
            return found

        __hash__ = str.__hash__

    recorded.note(route(event(), name=Leaving(ROUTE.name)), FULL)
    recorded.records.keep([ROUTE])
    assert recorded.records.find(RunQuery()) == []


def test_a_method_of_any_length_is_recorded_as_its_beginning() -> None:
    recorded = Recorded()
    recorded.records.handle(WantLive(on=True))
    recorded.records.unmatched(Request("id-1", "M" * 60_000, "/", "", {}), FINE, FULL)
    recorded.look()
    assert [one.method for one in recorded.shown] == ["M" * LONGEST_METHOD]
