"""Files of TLS settings that cannot be used: at the first start they are a fault, later they cost their route alone."""

import json
import os
from pathlib import Path

import pytest

from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.http_target import AUTHORITY, Target, echo, server_tls


def route(name: str, url: str, ca_file: Path | None = None) -> str:
    ca = "" if ca_file is None else f'WITH CA_FILE "{ca_file}"'
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 0 {ca}
        ADD EVENT E
            WITH SOURCE_TOPIC "in/{name}" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out/{name}"
    """


def test_a_file_that_is_gone_when_the_bridge_process_starts_again_costs_its_route_alone(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(AUTHORITY).read_bytes())
    with recording() as plain, Target(echo, tls=server_tls()) as secure:
        routes = route("Plain", plain.url) + route("Secure", f"https://localhost:{secure.port}", file)
        with hosting(routes, processes=1, status_seconds=60) as host:
            client = host.client("out/+")
            status = host.client("$SYS/broker/routes/Secure/status")
            assert json.loads(status.message()[1])["health"] == "Green"
            client.publish("in/Secure", b"1")
            assert client.message() == ("out/Secure", b"1")
            file.unlink()
            host.kill_bridge()
            client.publish("in/Plain", b"2")
            assert client.message() == ("out/Plain", b"2")
            client.publish("in/Secure", b"3")
            error = json.loads(client.message()[1])["error"]
            assert error["code"] == "tls_failed"
            assert f"CA_FILE: {file} cannot be used" in error["message"]
            said = json.loads(status.message()[1])
            while str(file) not in (said["last_error"] or {"message": ""})["message"]:
                said = json.loads(status.message()[1])  # those of before, and of the bridge that is away
            assert said["health"] != "Green"
            os.mkfifo(file)
            client.publish("in/Secure", b"5")
            assert "it is a FIFO" in json.loads(client.message()[1])["error"]["message"]
            file.unlink()
            file.write_bytes(Path(AUTHORITY).read_bytes())
            client.publish("in/Secure", b"4")
            assert client.message() == ("out/Secure", b"4")


def test_a_file_without_certificates_is_a_fault_at_the_first_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(Exception, match="Plugin init failed"), hosting(route("R", "https://localhost", file)):
        raise AssertionError("the broker has started")
    assert f"route R: CA_FILE: {file} cannot be used" in caplog.text
