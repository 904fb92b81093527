"""Many routes before servers that do not answer: the threads of a bridge process are bounded, and no route starves."""

import socket
import threading
from dataclasses import replace

from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget
from amqtt_rest_bridge.bridge.engine import Engine, Network
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from tests.support.embedded_broker import CODE, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen
from tests.support.waiting import SECONDS


def route(target: Recorder, name: str) -> str:
    return f"""
        DEFINE ROUTE {name} WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
            ADD EVENT E WITH SOURCE_TOPIC "{name}" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
                WITH DESTINATION_TOPIC "out"
    """


def test_routes_before_hanging_servers_share_the_threads_and_leave_one_to_every_other() -> None:
    most, names = 12, ("A", "B", "C")

    def run(sock: socket.socket) -> None:
        Engine(BridgeEnd(sock), Network(), threads=ThreadBudget(most)).run()

    entered, may_answer = threading.Semaphore(0), threading.Event()

    def hang(seen: Seen) -> tuple[int, bytes]:
        entered.release()
        may_answer.wait(SECONDS)
        return 200, seen.body

    with recording() as hanging, recording() as quick:
        hanging.answer = hang
        routes = "".join(route(hanging, name) for name in names) + route(quick, "Quick")
        with hosting(routes, processes=0, code=replace(CODE, run=run)) as host:
            client = host.client("out")
            for name in names * 30:
                client.publish(name, b"slow")
            assert all(entered.acquire(timeout=SECONDS) for _ in range(most))
            for _ in range(50):  # while more threads would start, if there could be more
                client.publish("Quick", b"quick")
                assert client.message() == ("out", b"quick")
            assert sum(thread.name.startswith("route-") for thread in threading.enumerate()) <= 2 * most
            may_answer.set()
            assert client.messages(90) == [("out", b"slow")] * 90
