"""The bridge's side of its control socket: a process that outlives no broker, and log records that hold up nothing."""

import asyncio
import logging
import pickle
import socket
import time
from pathlib import Path

import pytest

from amqtt_rest_bridge.broker.bridge_child import spawn_bridge
from amqtt_rest_bridge.broker.control import Failed, Loaded, Log, Start, read, read_now, written
from amqtt_rest_bridge.mqtt.private import PrivateAddress
from amqtt_rest_bridge.plugin_bridge import ControlHandler
from amqtt_rest_bridge.reload import FirstLoad
from amqtt_rest_bridge.settings import Settings

ROUTE = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
"""


def said(sock: socket.socket) -> object:
    """Return the next message that is not a log record."""
    while isinstance(message := read_now(sock, time.monotonic() + 30), Log):
        pass
    return message


def test_a_bridge_loads_its_routes_and_ends_with_its_broker_whose_socket_it_removes(tmp_path: Path) -> None:
    folder = tmp_path / "endpoint"
    folder.mkdir()
    (tmp_path / "r.lot").write_text(ROUTE)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = spawn_bridge(theirs)
        settings, nowhere = Settings(routes=str(tmp_path / "r.lot")), PrivateAddress(folder / "socket")
        ours.sendall(written(Start(settings, nowhere, None, logging.INFO)))
        loaded = said(ours)
        assert isinstance(loaded, Loaded)
        assert loaded.server_ports[0] > 0
        first = pickle.loads(loaded.routes or b"")
        assert isinstance(first, FirstLoad)
        assert [route.name for route in first.routes] == ["R"]
    assert process.end(30) == 1
    assert not folder.exists()


def test_a_bridge_whose_routes_have_errors_says_which_and_ends(tmp_path: Path) -> None:
    (tmp_path / "r.lot").write_text(ROUTE.replace("ENDPOINT", "ENDPONT"))
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = spawn_bridge(theirs)
        settings, nowhere = Settings(routes=str(tmp_path / "r.lot")), PrivateAddress(tmp_path / "socket")
        ours.sendall(written(Start(settings, nowhere, None, logging.INFO)))
        failed = said(ours)
        assert isinstance(failed, Failed)
        assert "ENDPONT" in failed.faults[0].message
        assert read_now(ours, time.monotonic() + 30) is None
        assert process.end(30) == 0


@pytest.mark.parametrize("elsewhere", [pytest.param(False, id="of the loop"), pytest.param(True, id="of a thread")])
def test_log_records_that_are_not_read_are_dropped_and_counted(elsewhere: bool) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_unix_connection(sock=theirs)
        handler = ControlHandler(writer)

        def emit(text: str) -> None:
            handler.emit(logging.LogRecord("a.logger", logging.INFO, __file__, 1, text, None, None))

        def emit_many() -> None:
            for _ in range(300):
                emit("x" * 10_000)

        if elsewhere:
            await asyncio.to_thread(emit_many)
        else:
            emit_many()
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

    asyncio.run(run())
