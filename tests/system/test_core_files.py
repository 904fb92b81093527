"""A process that crashes in native code leaves no core file, in which every payload and secret of it would be."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.asking import ask, ask_until_answered
from tests.support.commands import CONFIGURATION, SERVER_ROUTE, Running
from tests.support.http_recorder import Recorder

SECRET, PAYLOAD = "s3cr3t-of-the-target", b"p4yl0ad-of-a-message"
ROUTE = """
DEFINE ROUTE Out WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH AUTHORIZATION "Bearer " + GET SECRET "KEY"
    ADD EVENT E WITH SOURCE_TOPIC "webhook/received" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
"""


@pytest.fixture
def broker(tmp_path: Path, target: Recorder) -> Iterator[Running]:
    """Run a broker whose shell allows core files of any size."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "KEY").write_text(SECRET)
    (tmp_path / "routes.lot").write_text(SERVER_ROUTE + ROUTE.format(url=target.url))
    configuration = CONFIGURATION.replace("processes: 0", "processes: 1, secrets_dir: secrets")
    (tmp_path / "broker.yaml").write_text(configuration)
    shell = ["sh", "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$@"', "sh"]
    serve = [sys.executable, "-m", "amqtt_rest_bridge", "serve", "-c", "broker.yaml"]
    running = Running(subprocess.Popen([*shell, *serve], cwd=tmp_path, stderr=subprocess.PIPE, text=True))
    try:
        yield running
    finally:
        running.kill()


def core_limit(pid: int) -> int:
    """Return how many bytes a core file of a process may have."""
    (line,) = [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core")]
    return sys.maxsize if "unlimited" in line.split()[4] else int(line.split()[4])


def test_a_bridge_process_and_a_broker_that_crash_leave_no_core_file_and_tell_where_it_was(
    broker: Running, target: Recorder, tmp_path: Path
) -> None:
    port = int(broker.line("server mode listens on ").rpartition(":")[2])
    assert broker.port
    assert ask(port, "/webhook", PAYLOAD).status == 200
    assert target.request().headers["Authorization"] == f"Bearer {SECRET}"
    (bridge,) = broker.children()
    assert [core_limit(pid) < os.sysconf("SC_PAGE_SIZE") for pid in (broker.process.pid, bridge)] == [True, True]
    os.kill(bridge, signal.SIGSEGV)
    broker.line("Fatal Python error: Segmentation fault")
    broker.line(f"the bridge process (pid {bridge}) ended, killed by signal {signal.SIGSEGV.value}")
    assert ask_until_answered(port, "/webhook", PAYLOAD).status == 200
    assert target.request().body == PAYLOAD
    broker.send(signal.SIGSEGV)
    broker.line("Fatal Python error: Segmentation fault")
    assert broker.end() == -signal.SIGSEGV
    assert not list(tmp_path.glob("*core*"))
    written = "\n".join(broker.lines)
    assert SECRET not in written
    assert PAYLOAD.decode() not in written
