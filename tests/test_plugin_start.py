"""What stops the broker's start, and what it says then."""

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from amqtt.errors import PluginInitError, PluginLoadError

from tests.support.embedded_broker import Host, configuration

GOOD = """
DEFINE ROUTE Good WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/e" WITH DESTINATION_TOPIC "t"
"""

FIVE_FAULTS = """DEFINE ROUTE Bad WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://127.0.0.1:1"
        WITH ENABLE_CLIENT "maybe"
        WITH REQUEST_TIMOUT '5'
        WITH SERVER_PORT '70000'
    ADD EVENT E
        WITH SOURCE_TOPIC "a/#/b"
        WITH METHOD "FETCH"
        WITH ENDPOINT "/x"
"""


def start(tmp_path: Path, routes: str, **settings: Any) -> None:
    path = tmp_path / "routes.lot"
    path.write_text(routes)
    Host(configuration(path, **settings)).stop()


def test_every_fault_of_a_route_file_is_logged_with_line_and_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, FIVE_FAULTS)
    places = {record.getMessage().split(": error:")[0] for record in caplog.records if ": error:" in record.message}
    assert places >= {f"{tmp_path}/routes.lot:{place}" for place in ("4:28", "5:14", "6:26", "8:27", "9:21")}
    assert "REQUEST_TIMEOUT" in caplog.text


def test_a_taken_port_stops_the_start_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
            start(tmp_path, GOOD.replace("'0'", f"'{port}'"))
    assert f"cannot listen on 127.0.0.1 port {port}" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"processes": -1}, "the setting processes is -1; allowed is 0 to 1", id="processes"),
        pytest.param({"server_certfile": "x.pem"}, "belong together", id="certificate without key"),
        pytest.param({"workers": True}, "the setting workers is true; write a number", id="workers: true"),
        pytest.param({"server_host": ""}, "the setting server_host is empty; write 127.0.0.1", id="server_host"),
        pytest.param({"server_host": "192.0.2.1"}, "cannot listen on 192.0.2.1", id="host of another machine"),
        pytest.param({"server_certfile": "x.pem", "server_keyfile": "x.key"}, "x.pem", id="missing certificate"),
        pytest.param({"spool": "/nowhere/spool.db"}, "cannot open the spool /nowhere/spool.db", id="spool"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, GOOD, **settings)
    assert said in caplog.text


def test_missing_routes_stop_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        Host(configuration("")).stop()
    assert "the setting routes is missing" in caplog.text


def test_an_unknown_setting_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PluginLoadError):
        start(tmp_path, GOOD, proceses=1)


def test_a_missing_certificate_also_stops_the_start_with_a_bridge_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, GOOD, processes=1, server_certfile="x.pem", server_keyfile="x.key")
    assert "x.pem" in caplog.text


def test_a_lossless_route_needs_the_spool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lossless = """DEFINE ROUTE L WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:1" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"
    """
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, lossless)
    assert "routes.lot:1:1: error: route L has OVERLOAD_POLICY" in caplog.text


def test_a_user_property_needs_a_default_in_amqtt_but_in_a_condition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reads = """DEFINE ROUTE P WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:1" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/{property.site}"
            WITH WHEN "EXISTS {property.site}"
    """
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, reads)
    assert "routes.lot:1:1: error: event E of route P needs {property.site}, a user property of MQTT 5" in caplog.text
    assert "write a default, as in {property.site|none}" in caplog.text
    start(tmp_path, reads.replace("/{property.site}", "/{property.site|none}"))


@pytest.mark.parametrize(
    ("address", "otherwise"),
    [
        ("", "where a proxy before the bridge has the certificate"),
        ('WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "api.example.com"', "and begin BASE_ADDRESS with https://"),
    ],
)
def test_use_ssl_on_a_route_with_server_events_needs_the_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str, otherwise: str
) -> None:
    secure = GOOD.replace("WITH ENABLE_SERVER", f'WITH USE_SSL "true" {address} WITH ENABLE_SERVER')
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        start(tmp_path, secure)
    assert 'routes.lot:2:1: error: route Good has USE_SSL "true" and server events' in caplog.text
    assert f"or leave USE_SSL out, {otherwise}\n" in caplog.text
    start(tmp_path, secure.replace('USE_SSL "true"', 'USE_SSL "false"'))


def test_a_reload_to_use_ssl_without_a_certificate_keeps_the_routes_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "routes.lot"
    path.write_text(GOOD)
    host = Host(configuration(path))
    path.write_text(GOOD.replace("WITH ENABLE_SERVER", 'WITH USE_SSL "true" WITH ENABLE_SERVER'))
    host.reload()
    assert "need the plugin's setting server_certfile" in caplog.text
    host.stop()


def test_a_broker_that_is_started_a_second_time_says_that_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "routes.lot").write_text(GOOD)
    host = Host(configuration(tmp_path / "routes.lot"))
    host.wait(host.broker.shutdown())
    host.wait(host.broker.start())
    host.stop()
    assert "cannot serve routes again: make a new one" in caplog.text
