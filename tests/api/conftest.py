"""What the tests of the template API share: databases, libraries, an in-process client, a served API."""

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import falcon.testing
import psycopg
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from template_api.app import create_app
from template_api.library import Report, TemplateLibrary, import_templates
from template_api.openapi import description
from tests.forked import TEMPLATE_API, Forked
from tests.ports import free_port

POSTGRES_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def postgres_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([*map(str, POSTGRES_FOLDERS), os.environ.get("PATH", "")]))


POSTGRES_MISSING = postgres_program("initdb") is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if POSTGRES_MISSING:
        for item in items:
            if item.get_closest_marker("postgres"):
                item.add_marker(pytest.mark.skip(reason="PostgreSQL's programs are not installed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    where = "not found, its tests were skipped" if POSTGRES_MISSING else postgres_program("initdb")
    terminalreporter.write_line(f"PostgreSQL for the template API's tests: {where}")


class Postgres:
    """A PostgreSQL server of our own in a temporary folder, which may be stopped and started."""

    def __init__(self) -> None:
        # PostgreSQL refuses to run as root.
        name = "postgres" if _has_account("postgres") else "nobody"
        self._account = pwd.getpwnam(name) if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="template-api-postgres-"))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.port = free_port()
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "library", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def signal(self, number: int) -> None:
        """Send a signal to the server and to each of its processes."""
        server = int(Path(self._data, "postmaster.pid").read_text().splitlines()[0])
        os.kill(server, number)  # first, so that a server which is stopped starts no process meanwhile
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(ProcessLookupError):  # a child may end meanwhile
                os.kill(pid, number)

    def new_database(self) -> str:
        name = f"library_{uuid.uuid4().hex}"
        address = f"host=127.0.0.1 port={self.port} user=library dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return f"postgresql+psycopg://library@127.0.0.1:{self.port}/{name}"

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [postgres_program(program) or program, *arguments]
        account = {} if self._account is None else {"user": self._account.pw_uid, "group": self._account.pw_gid}
        done = subprocess.run(  # type: ignore[call-overload]  # user and group come together or not at all
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180, **account
        )
        assert done.returncode == 0, f"{program} failed with status {done.returncode}, see {self.folder}"


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may stop."""
    server = Postgres()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


def _empty_database(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'library.db'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once on SQLite and once on PostgreSQL."""
    return _empty_database(request, tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database, where the kind of database does not matter."""
    return f"sqlite:///{tmp_path / 'library.db'}"


def template(slug: str | None = "one", **members: Any) -> dict[str, Any]:
    """A template as a line of a .jsonl file."""
    given = {"slug": slug, "title": f"Template {slug}", "short_description": "What it does.", "content": "# Body"}
    return {name: value for name, value in {**given, **members}.items() if value is not None}


@dataclass
class Store:
    """A library under test: what is written to it, and how the API answers from it."""

    url: str
    folder: Path
    clients: list["Client"] = field(default_factory=list)

    def bring(self, *templates: Mapping[str, Any], prune: bool = False) -> Report:
        """Import templates from a .jsonl file."""
        file = self.folder / f"{uuid.uuid4().hex}.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in templates))
        return import_templates(self.url, file, prune=prune)

    def client(self, **options: Any) -> "Client":
        """An in-process client of an application over this library."""
        client = Client(TemplateLibrary(self.url), **options)
        self.clients.append(client)
        return client


class Client:
    """Ask an application in process, and check every answer against openapi.json."""

    def __init__(self, library: TemplateLibrary, **options: Any) -> None:
        self.library = library
        self._client = falcon.testing.TestClient(create_app(library, **options))

    def ask(self, method: str, path: str, **request: Any) -> falcon.testing.Result:
        self.library.refresh()
        result = self._client.simulate_request(method, path, **request)
        check_answer(method, path, result.status_code, result.headers, result.content)
        return result

    def get(self, path: str, **request: Any) -> falcon.testing.Result:
        return self.ask("GET", path, **request)

    def page(self, path: str, **request: Any) -> falcon.testing.Result:
        """Ask for a page, which openapi.json does not describe."""
        self.library.refresh()
        return self._client.simulate_get(path, **request)

    def post(self, body: object, **request: Any) -> falcon.testing.Result:
        return self.ask("POST", "/api/search", json=body, **request)

    def slugs(self, path: str, **params: str) -> list[str]:
        result = self.get(path, params=params, params_csv=False)
        assert result.status_code == 200, result.text
        return [each["slug"] for each in result.json["results"]]


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    """An empty library, on both kinds of database."""
    yield from _store(database_url, tmp_path)


@pytest.fixture
def sqlite_store(sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    """An empty library on SQLite, where the kind of database does not matter."""
    yield from _store(sqlite_url, tmp_path)


@pytest.fixture(scope="module", params=DATABASES)
def shared_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A library of the tests of one file that only read it, on both kinds of database."""
    folder = tmp_path_factory.mktemp("library")
    yield from _store(_empty_database(request, folder), folder)


@pytest.fixture(scope="module")
def shared_sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A library of the tests of one file that only read it, on SQLite."""
    folder = tmp_path_factory.mktemp("library")
    yield from _store(f"sqlite:///{folder / 'library.db'}", folder)


def _store(url: str, folder: Path) -> Iterator[Store]:
    store = Store(url, folder)
    yield store
    for client in store.clients:
        client.library.close()


_API = "urn:openapi"
_REGISTRY: Registry[Any] = Registry().with_resource(_API, DRAFT202012.create_resource(description()))


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Check an answer against openapi.json: its status is described, its headers and body are as described."""
    lower = {name.lower(): value for name, value in headers.items()}
    assert lower["x-request-id"]
    assert lower["access-control-allow-origin"] == "*"
    pointer = _described(method.lower(), path, status)
    if method == "HEAD" or status in {204, 304}:
        assert content == b""
        return
    assert lower["content-type"] == "application/json"
    if lower.get("content-encoding") == "gzip":
        return
    document = json.loads(content)
    if pointer is None:
        Draft202012Validator({"$ref": f"{_API}#/components/schemas/Error"}, registry=_REGISTRY).validate(document)
        return
    schema = {"$ref": f"{pointer}/content/application~1json/schema"}
    Draft202012Validator(schema, registry=_REGISTRY).validate(document)


def _described(method: str, path: str, status: int) -> str | None:
    """Return the JSON pointer of the described response; None for what holds for every path: 404, 405, 413, 431."""
    name = path.partition("?")[0]
    if name.startswith("/api/templates/"):
        name = "/api/templates/{idOrSlug}"
    operations = description()["paths"].get(name, {})
    operation = operations.get("get" if method == "head" else method)
    if operation is None:
        assert status in {204, 404, 405}, f"{method} {path} answered {status}"
        return None
    assert str(status) in operation["responses"], f"{method} {path} answered {status}, which is not described"
    escaped = name.replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
    return f"{_API}#/paths/{escaped}/{'get' if method == 'head' else method}/responses/{status}"


def lower_names(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@dataclass(frozen=True)
class Answer:
    """An answer that came over a socket; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Served:
    """A `template-api serve` process, asked over its socket."""

    def __init__(self, process: Forked, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=body, method=method, headers=dict(headers or {})
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                answer = Answer(response.status, lower_names(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = Answer(error.code, lower_names(error.headers), error.read())
        check_answer(method, path, answer.status, answer.headers, answer.content)
        return answer

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, None, headers)


@contextmanager
def serving(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run `template-api serve` on a free port until the block ends."""
    log = folder / f"serve-{uuid.uuid4().hex}.log"
    process = Forked(
        TEMPLATE_API, ["serve", "--port", "0", *arguments], folder, environment={**os.environ, **(environment or {})}
    )
    ready = threading.Event()
    reader = threading.Thread(target=_keep_log, args=(process, log, ready))
    reader.start()
    try:
        assert ready.wait(180), "the API did not start"
        address = log.read_text().partition(READY)[2].partition(",")[0]
        yield Served(process, int(address.rpartition(":")[2]), log)
    finally:
        process.terminate()
        process.wait(60)
        reader.join()


READY = "template API on http://"


def _keep_log(process: Forked, log: Path, ready: threading.Event) -> None:
    """Copy what the process writes to a file, and tell when it is ready or has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr, log.open("w") as kept:
        for line in process.stderr:
            kept.write(line)
            kept.flush()
            if READY in line:
                ready.set()
    ready.set()


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """Run `template-api serve`: `with serve("--database-url", url) as api:`."""

    def run(*arguments: str, environment: Mapping[str, str] | None = None) -> Any:
        return serving(tmp_path, *arguments, environment=environment)

    return run


@pytest.fixture(scope="session")
def serve_in() -> Callable[..., Any]:
    """Run `template-api serve` in a folder: `with serve_in(folder, "--database-url", url) as api:`."""
    return serving


@pytest.fixture(scope="session")
def make_template() -> Callable[..., dict[str, Any]]:
    """Write a template as a line of a .jsonl file."""
    return template


@pytest.fixture
def make_client() -> type[Client]:
    """Make a client over any library."""
    return Client
