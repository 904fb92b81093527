"""Whatever happens in whatever order, each message keeps its promises: those of a model that knows nothing of calls.

Every step is chosen: messages for five kinds of routes, answers, time, reloads, sources that take messages back, a
broker that is away, a clock that is set.
"""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from amqtt_rest_bridge.lot.model import Publication
from tests.engine.host import LATE, Rig, Sent, Source, text

WORKERS, CAPACITY, RETRIES = 2, 3, 2
LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'
BATCH = 'WITH BODY "{batch}"'
ROUTES = {
    "Plain": text("{more}", name="Plain", config=f"WITH RETRIES {RETRIES}"),
    "Kept": text("WITH ORDERED true {more}", name="Kept", route=LOSSLESS),
    "Paced": text("{more}", name="Paced", route='WITH RATE_LIMIT "1/s"', config=f"WITH RETRIES {RETRIES}"),
    "Batched": text("WITH BATCH_SIZE 3 WITH BATCH_SPLIT true {more}", name="Batched", route=LOSSLESS, body=BATCH),
    "Waits": text("{more}", name="Waits", route="WITH OVERLOAD_TIMEOUT 1000", config="WITH RETRIES 0").replace(
        "CAPACITY 1000", f"CAPACITY {CAPACITY}"
    ),
}
NAMES = sorted(ROUTES)


def definition(name: str, version: int) -> str:
    made = ROUTES[name].replace("{more}", f"WITH QOS {version % 3}").replace("in/#", f"{name}/#")
    return made.replace(
        'WITH DESTINATION_TOPIC "out"', f'WITH DESTINATION_TOPIC "out/{name}" WITH FAILURE_PAYLOAD true'
    )


@dataclass(eq=False)
class Sending:
    """What the model knows of a message."""

    number: int
    name: str
    topic: str
    source: Source
    is_matched: bool
    is_dropped: bool = False
    has_succeeded: bool = False
    requests: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def is_lossless(self) -> bool:
        return self.name in ("Kept", "Batched")


class Messages(RuleBasedStateMachine):
    """Client mode whose every step is chosen."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(*[definition(name, 0) for name in NAMES], workers=WORKERS)
        self.present = set(NAMES)
        self.version = 0
        self.sent: dict[int, Sending] = {}
        self.seen = 0
        self.keys: dict[bytes, str | None] = {}
        self.last_turn = -float("inf")

    # What happens.

    @rule(name=st.sampled_from(NAMES), topic=st.sampled_from("ab"), count=st.integers(1, 5))
    def publish(self, name: str, topic: str, count: int) -> None:
        for _ in range(count):
            number = len(self.sent) + 1
            source = Source(f"key {number}", is_bounded=name != "Waits")
            self.sent[number] = Sending(number, name, topic, source, name in self.present)
            self.rig.offer(b"%d" % number, f"{name}/{topic}", source)
            self.look()

    @precondition(lambda self: self.rig.waiting)
    @rule(which=st.integers(0, 9), status=st.sampled_from([200, 200, 200, 400, 413, 429, 503, None]))
    def answer(self, which: int, status: int | None) -> None:
        waiting = self.rig.waiting
        sent = waiting.pop(which % len(waiting))
        waiting.insert(0, sent)
        if status is None:
            self.rig.fail(LATE)
        else:
            for one in self.messages_of(sent):
                one.has_succeeded = status == 200
            self.rig.reply(status)
        self.look()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.rig.advance(seconds)
        self.look()

    @rule(seconds=st.integers(-100_000, 100_000))
    def set_the_clock(self, seconds: int) -> None:
        self.rig.clock.wall += seconds

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def reload(self, names: set[str]) -> None:
        self.version += 1
        self.present = names
        self.rig.use(*[definition(name, self.version) for name in sorted(names)] or (text(name="Other"),))
        self.look()

    @precondition(lambda self: self.open())
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        """A source takes messages of a route back, as when a slot is handed over."""
        name = data.draw(st.sampled_from(NAMES))
        for one in self.open():
            if one.name == name:
                one.source.is_dropped = one.is_dropped = True
        self.rig.do(self.rig.mode.drop_calls)
        self.look()

    @precondition(lambda self: not self.rig.broker.is_away)
    @rule()
    def lose_the_broker(self) -> None:
        self.rig.broker.is_away = True

    @precondition(lambda self: self.rig.broker.is_away)
    @rule()
    def find_the_broker(self) -> None:
        self.rig.do(self.rig.broker.come_back)
        self.look()

    @rule(lasts=st.booleans())
    def lease(self, lasts: bool) -> None:
        self.rig.do(lambda: self.rig.mode.share_limits(1, float("inf") if lasts else self.rig.clock.now - 1))
        self.look()

    # What was promised.

    def open(self) -> list[Sending]:
        return [one for one in self.sent.values() if one.source.state == "held"]

    def look(self) -> None:
        """Look at requests and publications that are new."""
        for request in self.rig.network.seen[self.seen :]:
            self.requested(request)
        self.seen = len(self.rig.network.seen)
        for publication, _, _ in self.rig.broker.published:
            self.published(publication)
        self.rig.broker.published.clear()

    def messages_of(self, request: Sent) -> list[Sending]:
        body = json.loads(request.body or b"")
        return [self.sent[number] for number in (body if isinstance(body, list) else [body])]

    def requested(self, request: Sent) -> None:
        batch = self.messages_of(request)
        name, key = batch[0].name, request.header("Idempotency-Key")
        assert [one.number for one in batch] == sorted(one.number for one in batch)
        assert {one.name for one in batch} == {name}
        assert (key is not None) is batch[0].is_lossless
        assert self.keys.setdefault(request.body or b"", key) == key
        for one in batch:
            assert one.source.state == "held"
            assert not (one.has_succeeded or one.failures or one.is_dropped), "sent after its end"
            one.requests += 1
            assert one.is_lossless or one.requests <= (1 if name == "Waits" else RETRIES + 1)
        if name == "Kept":  # its event is ORDERED: nothing before it on its topic is open
            before = [one for one in self.open() if (one.name, one.topic) == ("Kept", batch[0].topic)]
            assert batch[0].number == min(one.number for one in before)
        if name == "Paced":
            assert request.at >= self.last_turn + 0.999
            self.last_turn = request.at

    def published(self, publication: Publication) -> None:
        if publication.topic != "err":
            return
        failure = json.loads(publication.payload)
        one, code = self.sent[int(failure["payload"])], failure["error"]["code"]
        one.failures.append(code)
        assert not one.has_succeeded
        assert code == "overloaded" or not one.is_lossless or failure["status"] in (400, 413)

    @invariant()
    def no_place_is_taken_twice(self) -> None:
        for statistics in self.rig.outcomes.statistics.values():
            admission = statistics.admission
            assert 0 <= admission.in_flight <= min(WORKERS, admission.outstanding)
            assert statistics.retrying >= 0
        held = sum(len(b"%d" % one.number) for one in self.open())
        assert self.rig.outcomes.queue_bytes.held <= held

    def teardown(self) -> None:
        try:
            self.check_the_end()
        finally:
            self.rig.close()

    def check_the_end(self) -> None:
        self.rig.do(self.rig.broker.come_back)
        self.look()
        self.lease(True)
        for _ in range(12 * (len(self.sent) + 2)):
            while self.rig.waiting:
                self.answer(0, 200)
            self.wait(40.0)
        for one in self.sent.values():
            assert one.source.state == ("acknowledged" if one.has_succeeded or one.failures else one.source.state)
            ends = one.has_succeeded + len(one.failures) + (one.source.state == "kept")
            assert ends == one.is_matched, f"{ends} ends of {one}"
            assert one.source.state == "acknowledged" or one.is_dropped or one.is_lossless
        for statistics in self.rig.outcomes.statistics.values():
            admission = statistics.admission
            assert (admission.outstanding, admission.in_flight, admission.awaiting_room) == (0, 0, 0)
            assert (admission.held_bytes, statistics.retrying) == (0, 0)
        assert self.rig.outcomes.queue_bytes.held == 0


def test_whatever_happens_each_message_keeps_its_promises() -> None:
    run_state_machine_as_test(Messages, settings=settings(deadline=None, max_examples=25, stateful_step_count=30))


@pytest.mark.long
def test_whatever_happens_each_message_keeps_its_promises_in_many_runs() -> None:
    run_state_machine_as_test(Messages, settings=settings(deadline=None, max_examples=400, stateful_step_count=60))
