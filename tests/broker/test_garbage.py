"""A broker with a process of its own freezes the objects of its start; one in another program does not."""

import gc
from pathlib import Path

from tests.benchmarks.mqtt_wire import Wire
from tests.support.commands import SERVER_ROUTE, Workplace
from tests.support.embedded_broker import hosting


def is_visited(wanted: object) -> bool:
    return any(one is wanted for one in gc.get_objects())


def test_serve_freezes_the_objects_of_its_start(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    place.add_plugin(
        "    async def on_broker_client_connected(self, **_):\n"
        "        import gc\n"
        "        log.info('visited: %s', any(one is self for one in gc.get_objects()))\n"
    )
    with place.serving() as running:
        client = Wire(running.port, "ann")
        assert running.line("visited: ").endswith("False")
        client.close()


def test_a_broker_in_another_program_freezes_nothing() -> None:
    with hosting(SERVER_ROUTE) as host:
        assert is_visited(host.plugin)
