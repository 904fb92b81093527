"""Messages of lossless routes that wait for the ACL: is their publisher permitted to publish on their topic?

The broker's loop alone. Such a message is on disk already and acknowledged, so an ACL that fails is asked again, and
one that does not answer holds up the messages of that publisher alone.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from amqtt.session import Session
from msgspec import Struct

from amqtt_rest_bridge.broker.amqtt_broker import MayPublish
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.times import Backoff, LineLimit
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0  # an ACL that fails is logged at most this often


@dataclass(frozen=True, slots=True)
class AclTimes:
    """How long the answers of the ACL may take, in seconds, and when one that failed is asked again.

    The ACL may answer for one publisher slowly, or never: what it has not answered when `prompt` has passed waits in a
    queue of that publisher's own and delays no others. A task for every message would cost a tenth of the throughput.
    """

    prompt: float = 0.05
    slow: float = 5.0  # an answer that takes longer is reported
    failed: Backoff = field(default_factory=partial(Backoff, first=0.5))


Publisher = tuple[str | None, str | None]
"""Client id and user name."""


class Undecided(Struct, gc=False, eq=False):
    """A message whose rows are on disk, until the ACL has said whether its publisher may publish it.

    `username` is that of the publisher: the session may be another user's by the time the ACL is asked. `message` is
    None where it has to be read from disk. `keys` are those of its rows.

    Tens of thousands may wait behind clients that publish faster than amqtt forwards. So nothing in it is tracked by
    the garbage collector, which took 5 us more of CPU time a message where each had three containers of its own.
    """

    session: Session
    username: str | None
    topic: str
    message: Message | None
    keys: tuple[str, ...]
    failures: int = 0  # of the ACL, asked about this message


class KeepsUndecided(Protocol):
    """Where the messages are that the ACL decides about."""

    def permitted(self, undecided: Undecided) -> None:
        """Send the rows of a message: its publisher may publish it."""

    def forbidden(self, undecided: Undecided) -> None:
        """Remove the rows of a message: its publisher may not publish it."""

    def report_acl(self, undecided: Undecided, code: str, what: str) -> None:
        """Report to the routes of a message that the ACL does not answer."""


class AclQueue:
    """The queue of messages that wait for the ACL.

    Args:
        keeper: Is told what the ACL has decided.
        may_publish: Asks the ACL.
        times: How long it may take.
    """

    def __init__(self, keeper: KeepsUndecided, may_publish: MayPublish, times: AclTimes) -> None:
        self._keeper = keeper
        self._may_publish = may_publish
        self._times = times
        # Bounded by what the routes may hold. Only the disk comes between a publisher and its PUBACK: what follows is
        # done one message an iteration of the loop, as amqtt does it with its own part.
        self._waiting: deque[Undecided] = deque()
        self._filled = asyncio.Event()
        self._complaints = LineLimit(_QUIET_SECONDS)
        # Behind a message that the ACL has not answered: those of the same publisher, in order of arrival.
        self._behind: dict[Publisher, deque[Undecided]] = {}
        self._slow: set[asyncio.Task[None]] = set()

    def add(self, undecided: Undecided) -> None:
        """Queue a message."""
        self._waiting.append(undecided)
        self._filled.set()

    async def run(self) -> None:
        """Decide what is queued, until cancelled; may be run again after an error."""
        self._filled.set()
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._waiting:
                await self._decide(self._waiting.popleft())
                await asyncio.sleep(0)

    def cancel(self) -> None:
        """Stop waiting for answers; what has none is queued for the next `run`."""
        for task in self._slow:
            task.cancel()

    async def _decide(self, undecided: Undecided) -> None:
        """Decide a message, or move it aside when the ACL does not answer soon."""
        publisher = (undecided.session.client_id, undecided.username)
        if publisher in self._behind:
            self._behind[publisher].append(undecided)
            return
        deciding = asyncio.ensure_future(self._ask(undecided))
        try:
            await asyncio.wait((deciding,), timeout=self._times.prompt)
        except asyncio.CancelledError:
            self._interrupt(undecided, deciding)
            raise
        if deciding.done():
            deciding.result()  # raises what it has raised
            return
        self._behind[publisher] = deque()
        slow = asyncio.create_task(self._await_slowly(publisher, undecided, deciding))
        self._slow.add(slow)
        slow.add_done_callback(self._slow.discard)

    async def _await_slowly(self, publisher: Publisher, undecided: Undecided, deciding: "asyncio.Task[None]") -> None:
        """Await the answer about a message, then decide what came behind it; other messages are not delayed."""
        try:
            await asyncio.wait((deciding,), timeout=self._times.slow)
            if not deciding.done():
                waited = f"has not said for {self._times.slow:g} s"
                self._report(undecided, "acl_slow", waited, "its messages wait for the answer")
            await deciding
            while behind := self._behind[publisher]:
                undecided = behind.popleft()
                deciding = asyncio.ensure_future(self._ask(undecided))
                await deciding
        except asyncio.CancelledError:
            self._interrupt(undecided, deciding)
            raise
        except Exception as error:  # noqa: BLE001  # an error of ours must not keep an acknowledged message from its route
            self._ask_later(undecided, error)
        finally:
            self._waiting.extend(self._behind.pop(publisher))
            self._filled.set()

    def _interrupt(self, undecided: Undecided, deciding: "asyncio.Task[None]") -> None:
        """Queue a message that is not decided for the next `run`."""
        if not deciding.done():
            deciding.cancel()
            self._waiting.appendleft(undecided)

    async def _ask(self, undecided: Undecided) -> None:
        """Ask the ACL about a message, and do as it says; ask again later where it fails."""
        session = undecided.session
        if session.username != undecided.username:
            session = publisher_of(session.client_id, undecided.username)
        try:
            is_permitted = await self._may_publish(session, undecided.topic)
        except Exception as error:  # noqa: BLE001  # not a refusal, and the message has been acknowledged
            self._ask_later(undecided, error)
            return
        if is_permitted:
            self._keeper.permitted(undecided)
        else:
            self._keeper.forbidden(undecided)

    def _ask_later(self, undecided: Undecided, error: Exception) -> None:
        """Queue a message again after a delay that grows.

        Decision: others overtake it, ORDERED or not, since an ACL may fail for one publisher alone.
        """
        self._report(undecided, "acl_failed", "did not say", "it is asked again", error)
        undecided.failures += 1
        asyncio.get_running_loop().call_later(self._times.failed.delay(undecided.failures), self.add, undecided)

    def _report(self, undecided: Undecided, code: str, what: str, then: str, error: Exception | None = None) -> None:
        """Report an ACL without an answer in the status of the routes concerned, and in the log once a second."""
        client, topic = loggable(str(undecided.session.client_id)), loggable(undecided.topic)
        complaint = f"the ACL {what} whether {client} may publish on {topic}; {then}"
        self._keeper.report_acl(undecided, code, complaint)
        if self._complaints.count():
            log.error("%s", complaint, exc_info=error)


def publisher_of(client_id: str | None, username: str | None) -> Session:
    """Rebuild as much of a publisher as is known: a topic plugin that decides by anything else is not asked rightly."""
    session = Session()
    session.client_id, session.username = client_id, username
    return session
