"""What the tests of the admin port share: a caller of it, and routes to look at."""

import http.client
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.support.asking import Answered, ask
from tests.support.doors import Client, Host, Hosting
from tests.support.http_target import Seen
from tests.support.waiting import eventually

PATIENCE = 20.0
TOKEN = "a-token-of-24-characters"
_BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Events:
    """Server-sent events as they arrive."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self) -> tuple[str, Any]:
        """Wait for the next event that carries data: its name and value."""
        name, deadline = "message", monotonic() + 3 * PATIENCE  # comments keep the connection open for ever
        while line := self._response.readline():
            assert monotonic() < deadline, "no event came"
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                return name, json.loads(value)
        raise AssertionError("the stream has ended")

    def record(self) -> dict[str, Any]:
        """Wait for the next message or request that is not a probe."""
        while True:
            name, value = self.next()
            assert name == "message"
            if not str(value["topic"]).endswith("probe"):
                assert isinstance(value, dict)
                return value

    def begin(self, client: Client, topic: str = "probe") -> None:
        """Publish until the first event comes: that something follows takes a moment to reach every process."""
        came = threading.Event()

        def probe() -> None:
            while not came.wait(0.01):
                client.publish(topic, b"")

        probing = threading.Thread(target=probe)
        probing.start()
        try:
            self.next()
        finally:
            came.set()
            probing.join()


class Admin:
    """Asks one admin port."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.port = port
        self._headers = headers or {}

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answered:
        """Ask for a path."""
        return ask(self.port, path, None, method=method, **{**self._headers, **headers})

    @contextmanager
    def live(self, query: str = "", path: str = "/api/live") -> Iterator[Events]:
        """Follow what happens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", f"{path}{query}", headers=dict(self._headers))
            with connection.getresponse() as response:  # it holds the socket beyond the connection's end
                assert response.status == 200, response.read()
                assert response.headers["Content-Type"] == "text/event-stream"
                assert response.readline() == b"retry: 2000\n"
                yield Events(response)
        finally:
            connection.close()

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return the metrics, parsed by Prometheus' own parser: value by name and labels."""
        answer = self.get("/metrics")
        assert answer.status == 200
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return one metric, None when there is no such sample."""
        return self.samples().get((name, tuple(sorted(labels.items()))))

    def await_value(self, wanted: float, name: str, **labels: str) -> None:
        """Wait until a metric has a value."""
        eventually(lambda: self.value(name, **labels) == wanted, pause_seconds=0.02)  # a look parses all metrics

    def text(self, path: str) -> str:
        """Return what is at a path, as text."""
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return answer.text

    def run(self, name: str) -> dict[str, Any]:
        """Return a run with its message, request and response; without members if it is not known."""
        answer = self.get(f"/api/runs/{name}")
        found = answer.json if answer.status == 200 else {}
        assert isinstance(found, dict)
        return found

    def problems(self) -> list[dict[str, Any]]:
        """Return the problems."""
        problems = self.get("/api/problems").json["problems"]
        assert isinstance(problems, list)
        return problems

    def status(self, route: str) -> dict[str, Any]:
        """Return the status of a route."""
        (status,) = [one for one in self.get("/api/routes").json["routes"] if one["name"] == route]
        assert isinstance(status, dict)
        return status

    def calls(self, route: str) -> list[dict[str, Any]]:
        """Return the last calls of a route."""
        calls = self.get(f"/api/routes/{route}/calls").json["calls"]
        assert isinstance(calls, list)
        return calls


def admin_of(host: Host) -> Admin:
    """Return the admin port of a broker."""
    port = host.admin_port
    assert port is not None
    return Admin(port)


class Bridge(NamedTuple):
    """A bridge, its admin port asked with the token, and a client of what the route of `client_route` publishes."""

    host: Host
    admin: Admin
    client: Client


@contextmanager
def bridging(hosting: Hosting, routes: str, *filters: str, **settings: Any) -> Iterator[Bridge]:
    """Run a bridge with an admin port and its token until the block ends; the client subscribes `filters`."""
    with hosting(routes, **{"admin_port": 0, "admin_token": TOKEN, **settings}) as host:
        yield Bridge(host, admin_with_token(host), host.client(*(filters or ("done/#",))))


def failed(client: Client, topic: str = "orders/7", payload: bytes = b"1") -> str:
    """Publish a message whose call fails, and return the id of its run."""
    client.publish(topic, payload)
    return str(json.loads(client.message()[1])["id"])


def client_route(url: str, *, name: str = "Orders", event: str = "", config: str = "", more: str = "") -> str:
    """Write a route that posts what comes on orders/+ to a server."""
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" {config}
    {more}
    ADD EVENT Send WITH SOURCE_TOPIC "orders/+" WITH METHOD "POST" WITH ENDPOINT "/new/{{topic.2}}"
        WITH BODY "{{payload}}" WITH DESTINATION_TOPIC "done/{{topic.2}}" {event}
"""


def server_route(name: str = "Intake") -> str:
    """Write a route that publishes what is posted to /hook."""
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "received"
"""


def admin_with_token(host: Host) -> Admin:
    """Return the admin port of a broker, asked with its token."""
    return Admin(admin_of(host).port, _BEARER)


def post(admin: Admin, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """Post to the admin port with the token; return the status with the JSON of the answer, or with its Location."""
    answer = ask(admin.port, path, body, **{**_BEARER, **headers})
    return answer.status, answer.json if answer.body else answer.headers["Location"]


def runs(admin: Admin, query: str = "") -> list[dict[str, Any]]:
    """Return the runs that a query asks for."""
    answer = admin.get(f"/api/runs{query}")
    assert answer.status == 200, answer.body
    found = answer.json["runs"]
    assert isinstance(found, list)
    return found


def outcome(admin: Admin, run: str) -> str | None:
    """Return the outcome of a run, None while it is not known."""
    return admin.run(run).get("outcome")


def refusing_with_reason(seen: Seen) -> tuple[int, bytes]:
    """Answer 422 with a reason to what is bad."""
    return (422, b'{"reason": "no such customer"}') if b"bad" in seen.body else (200, b"{}")


def await_written(file: Path, count: int) -> None:
    """Wait until a file of failures has so many runs: it is written on a thread."""
    with closing(sqlite3.connect(file)) as database:
        eventually(lambda: database.execute("SELECT count(*) FROM runs").fetchone() == (count,))
