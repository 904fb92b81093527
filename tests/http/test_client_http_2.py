"""HTTP/2 where a server offers it by TLS, tried with nginx as Debian has it."""

from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http.clients import Client, client_of
from tests.http.servers import NGINX, serving
from tests.support.http_target import AUTHORITY, CERTIFICATES

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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "body").mkdir()
    (folder / "file").write_bytes(b"x" * 100_000)
    options = "-c", "{file}", "-e", "{folder}/errors"
    with serving(folder, CONFIGURATION, NGINX, *options, certificates=CERTIFICATES) as port:
        yield f"https://localhost:{port}"


@pytest.fixture
def client(base: str) -> Iterator[Client]:
    with client_of(RestApiConfig(base_address=base, ca_file=AUTHORITY)) as client:
        yield client


def test_requests_go_by_http_2_over_one_connection(client: Client) -> None:
    for number in range(1, 4):
        response = client.ask(Method.POST, "/x", (("X-Value", "v"),), b"body")
        assert (response.status, response.reason) == (200, "")
        assert response.body == b"HTTP/2.0 POST v %d" % number


def test_many_requests_at_once_are_answered_each(client: Client) -> None:
    requests = [HttpRequest(Method.GET, f"{client.base}/x", (("X-Value", str(number)),)) for number in range(50)]
    assert [response.body.split()[2] for response in client.send_all(requests)] == [b"%d" % n for n in range(50)]


def test_statuses_redirects_and_large_bodies_are_as_with_http_1(client: Client) -> None:
    assert client.ask(path="/gone").status == 404
    assert client.ask(path="/from").body.startswith(b"HTTP/2.0 GET")
    assert client.ask(path="/large/file").body == b"x" * 100_000
