"""Messages of lossless routes that wait for the ACL: may their publisher publish on their topic?

`lossless` has written such a message to disk, and amqtt has acknowledged it. So an ACL that fails is asked again, and
one that does not answer holds up only the messages of that publisher. The broker's loop only.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from amqtt.session import Session
from msgspec import Struct

from amqtt_rest_bridge.broker.amqtt_broker import Acl
from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.times import Backoff, LineLimit
from amqtt_rest_bridge.topics import loggable

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.lossless import Lossless

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0  # an ACL that fails is logged at most this often


@dataclass(frozen=True, slots=True)
class AclTimes:
    """When an answer of the ACL is late and reported, in seconds, and when an ACL that failed is asked again."""

    slow: float = 5.0
    failed: Backoff = field(default_factory=partial(Backoff, first=0.5))


Publisher = tuple[str | None, str | None]
"""Client id and user name."""


class Undecided(Struct, gc=False, eq=False):
    """A message whose rows are on disk, until the ACL has said whether its publisher may publish it.

    `username` is that of the publisher: the session may be another user's by the time the ACL is asked. `message` is
    None if it has to be read from disk. `keys` are the keys of its rows.

    Tens of thousands may wait behind clients that publish faster than amqtt forwards. So nothing in it is tracked by
    the garbage collector, which would cost more with each of them.
    """

    session: Session
    username: str | None
    topic: str
    message: Message | None
    keys: tuple[str, ...]
    failures: int = 0  # of the ACL, asked about this message


class AclQueue:
    """Messages that wait for the ACL: a queue for each publisher, and a task that asks about its messages in order.

    So the messages of one publisher keep their order; those of two may overtake each other. The queues are bounded by
    what the routes may hold. Each task asks about one message in an iteration of the loop.

    Args:
        keeper: Keeps the messages, and acts on the ACL's answers.
        acl: Decides.
        times: How long it may take.
    """

    def __init__(self, keeper: "Lossless", acl: Acl, times: AclTimes) -> None:
        self._keeper = keeper
        self._acl = acl
        self._times = times
        self._slow = f"has not said for {times.slow:g} s"
        self._queues: dict[Publisher, deque[Undecided]] = {}
        self._tasks: asyncio.TaskGroup | None = None  # one for each queue, while `run` does
        self._complaints = LineLimit(_QUIET_SECONDS)

    def add(self, undecided: Undecided) -> None:
        """Queue a message."""
        publisher = (undecided.session.client_id, undecided.username)
        queue = self._queues.get(publisher)
        if queue is not None:
            queue.append(undecided)
            return
        self._queues[publisher] = deque([undecided])
        if self._tasks is not None:
            self._tasks.create_task(self._decide_all(publisher))

    async def run(self) -> None:
        """Decide what is queued, until cancelled. What is not decided then is asked again by the next `run`."""
        async with asyncio.TaskGroup() as tasks:
            for publisher in self._queues:
                tasks.create_task(self._decide_all(publisher))
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    async def _decide_all(self, publisher: Publisher) -> None:
        queue = self._queues[publisher]
        while queue:
            await self._decide(queue[0])
            queue.popleft()
            await asyncio.sleep(0)
        del self._queues[publisher]

    async def _decide(self, undecided: Undecided) -> None:
        """Ask the ACL about a message, and do as it says; ask again later where it fails.

        A failure is not a refusal, since the message has been acknowledged. Later messages overtake it, even ORDERED
        ones, since an ACL may fail for one topic alone.
        """
        session, loop = undecided.session, asyncio.get_running_loop()
        if session.username != undecided.username:
            session = publisher_of(session.client_id, undecided.username)
        slow = loop.call_later(
            self._times.slow, self._report, undecided, "acl_slow", self._slow, "its messages wait for the answer"
        )
        try:
            if await self._acl.may_publish(session, undecided.topic):
                self._keeper.permitted(undecided)
            else:
                self._keeper.forbidden(undecided)
        except Exception as error:  # noqa: BLE001  # of any plugin
            self._report(undecided, "acl_failed", "did not say", "it is asked again", error)
            undecided.failures += 1
            loop.call_later(self._times.failed.delay(undecided.failures), self.add, undecided)
        finally:
            slow.cancel()

    def _report(self, undecided: Undecided, code: str, what: str, then: str, error: Exception | None = None) -> None:
        """Report an ACL without an answer in the status of the routes concerned, and in the log once a second."""
        client, topic = loggable(str(undecided.session.client_id)), loggable(undecided.topic)
        complaint = f"the ACL {what} whether {client} may publish on {topic}; {then}"
        self._keeper.report_acl(undecided, code, complaint)
        if self._complaints.count():
            log.error("%s", complaint, exc_info=error)


def publisher_of(client_id: str | None, username: str | None) -> Session:
    """Return a session with the client id and user name only: an ACL that decides by anything else may be wrong."""
    session = Session()
    session.client_id, session.username = client_id, username
    return session
