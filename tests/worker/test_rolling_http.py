"""HTTP callers of a machine whose workers are restarted one after the other: they notice nothing."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.worker.workers import Group

pytestmark = pytest.mark.mosquitto

SECONDS = 10.0  # that a caller waits, for a connection as for an answer


def server_route(port: int) -> str:
    return f"""
DEFINE ROUTE Hooks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "{port}"
    ADD EVENT Hook WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hooks"
"""


class Callers:
    """Threads that post until `stop`; `most` requests on a connection each."""

    def __init__(self, port: int, *most: int) -> None:
        self.answered = 0
        self.failures: list[object] = []
        self._port = port
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(len(most))
        self._running = [self._threads.submit(self._call, one) for one in most]

    def stop(self) -> None:
        self._is_over.set()
        for one in self._running:
            one.result()
        self._threads.shutdown()

    def _call(self, most: int) -> None:
        while not self._is_over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
            try:
                for _ in range(most):
                    connection.request("POST", "/hook", b"x")
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status == 200:
                        self.answered += 1
                    else:
                        self.failures.append(answer.status)
                    if answer.will_close or self._is_over.wait(0.002):  # which leaves the processor to others
                        break
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(error)
            finally:
                connection.close()


@pytest.mark.parametrize(
    ("turns", "least"), [pytest.param(1, 100, id="1"), pytest.param(6, 10_000, id="6", marks=pytest.mark.long)]
)
def test_callers_notice_nothing_of_a_rolling_restart(group: Group, unused_port: int, turns: int, least: int) -> None:
    """Restarts go on until so many requests have been answered."""
    group.routes(server_route(unused_port))
    watcher = group.broker.client("watcher").subscribe("hooks")
    running = [group.start(slot).ready() for slot in (0, 1)]
    callers = Callers(unused_port, 1, 1, 1_000_000, 1_000_000)
    restarts = 0
    while restarts < 2 * turns or callers.answered < least:
        slot = restarts % 2
        running[slot].stop()
        running[slot] = group.start(slot).ready()
        restarts += 1
        assert not callers.failures
    callers.stop()
    assert callers.failures == []
    print(f"{callers.answered} answers over {restarts} restarts")
    watcher.collect(callers.answered)
