"""An HTTP server for tests of the whole bridge: records requests, answers by a function that a test may replace."""

import contextlib
import http
import queue
from collections.abc import Callable, Iterator

from tests.support.http_target import Peer, Seen, Target, reply
from tests.support.waiting import SECONDS

Answer = tuple[int, bytes]


def echo(seen: Seen) -> Answer:
    """Answer 200 with the body that came."""
    return 200, seen.body


class Recorder(Target):
    """A running server; `answer` may be replaced at any time."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(self._converse, port=port)
        self.answer: Callable[[Seen], Answer] = echo
        self.arrived: queue.SimpleQueue[Seen] = queue.SimpleQueue()
        """Requests that no test has taken with `request`."""
        self.__enter__()

    def request(self, seconds: float = SECONDS) -> Seen:
        """Wait for the next request."""
        return self.arrived.get(timeout=seconds)

    def take_all(self) -> list[Seen]:
        """Take all requests that have come."""
        return [self.request() for _ in range(self.arrived.qsize())]

    def _converse(self, peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            self.arrived.put(seen)
            status, body = self.answer(seen)
            peer.send(reply(body, f"{status} {http.HTTPStatus(status).phrase}"))


@contextlib.contextmanager
def recording(port: int = 0) -> Iterator[Recorder]:
    """Run a recorder until the block ends."""
    with contextlib.closing(Recorder(port)) as recorder:
        yield recorder
