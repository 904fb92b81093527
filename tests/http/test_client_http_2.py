"""HTTP/2 where a server offers it by TLS, tried with nginx as Debian has it."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.http.client import HttpClient
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http.clients import Client, options_of
from tests.support.http_target import AUTHORITY, CERTIFICATES
from tests.support.ports import free_port
from tests.support.waiting import eventually

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIGURATION = """
daemon off; pid {folder}/pid; error_log {folder}/errors; user root;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl http2;
        ssl_certificate {certificates}/server.pem; ssl_certificate_key {certificates}/server.pem;
        location / {{ return 200 "$server_protocol $request_method $http_x_value $connection_requests"; }}
        location /gone {{ return 404 "no"; }}
        location /from {{ return 302 https://localhost:{port}/to; }}
        location /large {{ alias {folder}/; }}
    }}
}}
"""

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    (folder / "body").mkdir()
    (folder / "file").write_bytes(b"x" * 100_000)
    written = folder / "nginx.conf"
    written.write_text(CONFIGURATION.format(folder=folder, port=port, certificates=CERTIFICATES), encoding="utf-8")
    with subprocess.Popen([str(NGINX), "-c", str(written), "-e", str(folder / "errors")]) as process:
        try:
            eventually(lambda: listens(port))
            yield f"https://localhost:{port}"
        finally:
            process.terminate()


@contextlib.contextmanager
def client_of(base: str, limit: int = 200_000) -> Iterator[Client]:
    config = RestApiConfig(base_address=base, ca_file=AUTHORITY)
    client = Client(HttpClient(options_of(config, max_response_bytes=limit)))
    try:
        yield client
    finally:
        client.close()


def test_requests_go_by_http_2_over_one_connection(base: str) -> None:
    with client_of(base) as client:
        for number in range(1, 4):
            request = HttpRequest(Method.POST, f"{base}/x", (("X-Value", "v"),), b"body")
            response = client.send(request)
            assert (response.status, response.reason) == (200, "")
            assert response.body == b"HTTP/2.0 POST v %d" % number


def test_many_requests_at_once_are_answered_each(base: str) -> None:
    with client_of(base) as client:
        requests = [HttpRequest(Method.GET, f"{base}/x", (("X-Value", str(number)),)) for number in range(50)]
        assert [response.body.split()[2] for response in client.send_all(requests)] == [b"%d" % n for n in range(50)]


def test_statuses_redirects_and_large_bodies_are_as_with_http_1(base: str) -> None:
    with client_of(base) as client:
        assert client.send(HttpRequest(Method.GET, f"{base}/gone")).status == 404
        assert client.send(HttpRequest(Method.GET, f"{base}/from")).body.startswith(b"HTTP/2.0 GET")
        assert client.send(HttpRequest(Method.GET, f"{base}/large/file")).body == b"x" * 100_000
