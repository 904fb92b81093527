"""Bridge processes that die or hang, reloads and shutdowns in between: in a real broker, with real processes."""

import asyncio
import itertools
import json
import logging
import os
import signal
from pathlib import Path

import pytest

from amqtt_rest_bridge.processes.supervisor import Times
from tests.support.commands import accepts
from tests.support.embedded_broker import Host, hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, echo
from tests.support.spawning import Spawning
from tests.support.waiting import SECONDS, eventually


def route(target: Recorder, event: str = "", config: str = "", name: str = "R") -> str:
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" {config}
        ADD EVENT E
            WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out" {event}
    """


def kill(host: Host, index: int = 0) -> None:
    """Kill a bridge process and wait until the broker knows."""
    bridge = host.bridges[index]
    os.kill(bridge.pid, signal.SIGKILL)
    eventually(lambda: not bridge.ready, "the broker does not notice")


def reload(host: Host, routes: str) -> None:
    """Use other routes now."""
    path = Path(host.plugin.config.routes)
    path.write_text(routes)
    host.reload()


def messages(host: Host, name: str = "R") -> dict[str, int]:
    return dict(host.plugin.service.statistics[name].status(0.0)["messages"])


def test_a_bridge_process_that_dies_while_calls_wait_for_their_next_try_leaves_nothing_open(target: Recorder) -> None:
    target.answer = lambda _: (503, b"")
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        eventually(lambda: messages(host)["retried"] == 1, "not tried again")
        kill(host)
        assert json.loads(client.message()[1])["error"]["code"] == "bridge_restarted"
        assert (messages(host)["queued"], messages(host)["in_flight"]) == (0, 0)
        assert host.plugin.service.statistics["R"].admission.waiting == 0


def test_messages_that_come_while_no_bridge_runs_outlive_a_reload_of_their_route(
    target: Recorder,
) -> None:
    spawning = Spawning()
    with hosting(route(target), processes=1, **spawning.options) as host:
        client = host.client("out", "other")
        with spawning.failing():
            kill(host)
            client.publish("in/1", b"held")
            reload(host, route(target).replace('"out"', '"other"'))
        assert client.message() == ("other", b"held")
        client.publish("in/1", b"next")
        assert client.message() == ("other", b"next")
        assert messages(host)["failed"] == 0


def test_ordered_messages_do_not_overtake_each_other_while_one_of_two_processes_is_away(
    target: Recorder,
) -> None:
    spawning = Spawning()
    gate = Gate()
    target.answer = gate.before(echo)
    with hosting(route(target, 'WITH ORDERED "true"', "WITH RETRIES '0'"), processes=2, **spawning.options) as host:
        client = host.client("out")
        client.publish("in/1", b"lost")
        assert gate.entered.get(timeout=SECONDS).body == b"lost"
        busy = next(index for index, bridge in enumerate(host.bridges) if bridge.calls.open)
        with spawning.failing():
            kill(host, busy)
            client.publish("in/1", b"1")  # while its process is away
            assert json.loads(client.message()[1])["error"]["code"] == "bridge_restarted"
        eventually(lambda: host.bridges[busy].ready, "not started again")
        client.publish("in/1", b"2")
        assert gate.entered.get(timeout=SECONDS).body == b"1"
        assert len(host.bridges[busy].calls.open) == 2, "two processes have calls of one topic"
        gate.open.set()
        assert client.messages(2) == [("out", b"1"), ("out", b"2")]


def test_signals_to_the_whole_group_do_not_end_a_bridge_process(target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        gate.entered.get(timeout=SECONDS)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(host.bridges[0].pid, number)
        gate.open.set()
        assert client.message() == ("out", b"1")


def test_a_bridge_process_that_cannot_be_started_again_is_tried_until_it_can(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    spawning = Spawning()
    with hosting(route(target), processes=1, **spawning.options) as host:
        client = host.client("out")
        with spawning.failing():
            kill(host)
            eventually(lambda: caplog.text.count("no more processes; tried again in") > 1, "nothing said so")
        client.publish("in/1", b"1")
        assert client.message() == ("out", b"1")


def test_a_bridge_process_that_answers_no_ping_is_killed_and_started_again(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        (bridge,) = host.bridges

        async def ping() -> None:
            bridge._ping()

        for _ in range(10):  # one that answers lives on
            host.wait(ping())
            eventually(lambda: bridge._unanswered == 0, "a ping is not answered")
        os.kill(bridge.pid, signal.SIGSTOP)
        client.publish("in/1", b"1")
        eventually(lambda: bridge.calls.open, "the call is not dispatched")
        for _ in range(7):
            host.wait(ping())
        assert json.loads(client.message()[1])["error"]["code"] == "bridge_restarted"
        assert f"bridge process 0 (pid {bridge.pid}) hangs and is killed" in caplog.text
        client.publish("in/2", b"2")
        assert client.message() == ("out", b"2")


def test_tls_files_that_cannot_be_used_change_nothing_on_a_reload(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        pid = host.bridges[0].pid
        reload(host, route(target, config=f'WITH CA_FILE "{tmp_path}/ca.pem"').replace("http:", "https:"))
        assert "reload failed, keeping the current routes: route R: CA_FILE" in caplog.text
        client.publish("in/1", b"as before")
        assert client.message() == ("out", b"as before")
        assert host.bridges[0].pid == pid


def test_a_broker_that_stops_lets_requests_finish_and_counts_what_it_leaves(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    listening = """
    DEFINE ROUTE Listening WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "hook"
    """
    with hosting(route(target) + listening, processes=1, workers=2) as host, caplog.at_level(logging.WARNING):
        client, port = host.client("out"), host.http_port
        for number in range(5):
            client.publish("in/1", b"%d" % number)
        running = {gate.entered.get(timeout=SECONDS).body for _ in range(2)}
        stopping = asyncio.run_coroutine_threadsafe(host.plugin.on_broker_pre_shutdown(), host._loop)
        eventually(lambda: not accepts(port), "the bridge process is not stopping")  # its workers were told before
        client.publish("in/1", b"too late")
        gate.open.set()
        assert {payload for _, payload in client.messages(2)} == running
        stopping.result(SECONDS)
        assert "route R: 4 message(s) had not been answered when the broker stopped" in caplog.text
        assert gate.entered.empty(), "a request began during the shutdown"


def test_a_broker_that_stops_waits_for_a_hanging_request_no_longer_than_its_grace(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    gate.patience = None
    target.answer = gate.before(echo)
    try:
        with hosting(route(target), processes=1, times=Times(grace=0.1)) as host:
            host.client().publish("in/1", b"1")
            gate.entered.get(timeout=SECONDS)
        assert "route R: 1 message(s) had not been answered" in caplog.text
    finally:
        gate.open.set()


def test_what_a_dead_process_held_is_dispatched_to_the_next_one_in_order_and_in_parts(
    target: Recorder, tmp_path: Path
) -> None:
    spawning = Spawning()
    gate = Gate()
    target.answer = gate.before(echo)
    lossless = route(target, 'WITH ORDERED "true"') + '    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n'
    with hosting(lossless, processes=1, spool=str(tmp_path / "spool.db"), **spawning.options) as host:
        client = host.client("out")
        filler = b"x" * 20_000
        bodies = [b"%d " % number + filler for number in range(60)]
        for body in bodies[:50]:
            client.publish("in/1", body)
        assert gate.entered.get(timeout=SECONDS).body == bodies[0]
        with spawning.failing():
            kill(host)
            for body in bodies[50:]:
                client.publish("in/1", body)
        gate.open.set()
        assert [payload for _, payload in client.messages(60)] == bodies


@pytest.mark.parametrize("policy", ["balanced", "lossless"])
def test_what_a_dead_process_held_moves_a_little_in_each_iteration_of_the_brokers_loop(
    target: Recorder, tmp_path: Path, policy: str
) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    routes = route(target) + f'    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "{policy}"\n'
    size, count, most = 20_000, 120, 64 * 1024
    with hosting(routes, processes=1, spool=str(tmp_path / "spool.db")) as host:
        client = host.client("out")
        for number in range(count):
            client.publish("in/1", b"%03d " % number + b"x" * (size - 4))
        dead = host.bridges[0]
        eventually(lambda: len(dead.calls.open) == count, "they are not with the bridge process")

        def moved() -> int:
            """Count the messages that have ended, or are with the next process."""
            (bridge,) = host.bridges
            outstanding = host.plugin.service.statistics["R"].admission.outstanding
            return count - outstanding + len(bridge.calls.open) * (bridge is not dead)

        async def watch() -> list[int]:
            steps = [0]
            while steps[-1] < count:
                await asyncio.sleep(0)
                steps.append(moved())
            return steps

        watching = asyncio.run_coroutine_threadsafe(watch(), host._loop)
        kill(host)
        steps = watching.result(SECONDS)
        gate.open.set()
        assert len(client.messages(count)) == count
        assert max(after - before for before, after in itertools.pairwise(steps)) * size < most + size
