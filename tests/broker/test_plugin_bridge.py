"""The bridge's side of its control socket: a process that outlives no broker, and log records that hold up nothing."""

import asyncio
import contextlib
import logging
import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.broker.bridge_child import RunningProcess, spawn_bridge
from amqtt_rest_bridge.broker.control import Loaded, Log, Start, read, read_blocking, written
from amqtt_rest_bridge.mqtt.private import PrivateAddress
from amqtt_rest_bridge.plugin_bridge import ControlHandler
from amqtt_rest_bridge.reload import LoadedRoutes
from amqtt_rest_bridge.settings import Settings
from tests.broker.conftest import on_a_loop

ROUTE = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
"""


def said(sock: socket.socket) -> object:
    """Return the next message that is not a log record."""
    while isinstance(message := read_blocking(sock, time.monotonic() + 30), Log):
        pass
    return message


@contextlib.contextmanager
def started(folder: Path, routes: str, address: Path) -> Iterator[tuple[RunningProcess, socket.socket]]:
    """Start a bridge, and close its socket at the end of the block."""
    (folder / "r.lot").write_text(routes)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = spawn_bridge(theirs)
        settings = Settings(routes=str(folder / "r.lot"))
        ours.sendall(written(Start(settings, PrivateAddress(address), None, logging.INFO)))
        yield process, ours


def test_a_bridge_loads_its_routes_and_ends_with_its_broker_whose_socket_it_removes(tmp_path: Path) -> None:
    (tmp_path / "endpoint").mkdir()
    with started(tmp_path, ROUTE, tmp_path / "endpoint" / "socket") as (process, ours):
        loaded = said(ours)
        assert isinstance(loaded, Loaded)
        assert loaded.server_ports[0] > 0
        first = pickle.loads(loaded.routes or b"")
        assert isinstance(first, LoadedRoutes)
        assert [route.name for route in first.routes] == ["R"]
    assert process.end(30) == 1
    assert not (tmp_path / "endpoint").exists()


@pytest.mark.parametrize("elsewhere", [pytest.param(False, id="of the loop"), pytest.param(True, id="of a thread")])
@on_a_loop
async def test_log_records_that_are_not_read_are_dropped_and_counted(elsewhere: bool) -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_unix_connection(sock=theirs)
    handler = ControlHandler(writer)

    def emit(text: str, count: int = 1) -> None:
        for _ in range(count):
            handler.emit(logging.LogRecord("a.logger", logging.INFO, __file__, 1, text, None, None))

    if elsewhere:
        await asyncio.to_thread(emit, "x" * 10_000, 300)
    else:
        emit("x" * 10_000, 300)
    await asyncio.sleep(0)
    reader, other = await asyncio.open_unix_connection(sock=ours)
    kept = 0
    async with asyncio.timeout(30):
        while writer.transport.get_write_buffer_size():
            kept += (await read(reader)).text == "x" * 10_000
        emit("the next one")
        while not (message := await read(reader)).text.endswith("too many came at once"):
            kept += 1
        assert message.text.startswith(f"{300 - kept} log record(s)")
        assert (await read(reader)) == Log(logging.INFO, "a.logger", "the next one")
    assert 100 < kept < 200
    for one in (writer, other):
        one.close()
        await one.wait_closed()
