"""A library under test, and an application over it that is asked in process; every answer is checked."""

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import falcon.testing
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from template_api.app import create_app
from template_api.library import Pace, Report, TemplateLibrary, import_templates
from template_api.query import description


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

    @contextlib.contextmanager
    def without_index(self) -> Iterator["Client"]:
        """Yield a client of a library that is followed, but for its index, which is begun when the block ends."""
        library = TemplateLibrary(self.url, pace=Pace(first_index=0))
        client = Client(library, refreshing=False)
        self.clients.append(client)
        with library._index_lock:
            library.follow()
            yield client


class Client:
    """Ask an application in process, and check every answer against openapi.json."""

    def __init__(self, library: TemplateLibrary, *, refreshing: bool = True, **options: Any) -> None:
        self.library = library
        self._refreshing = refreshing
        self._client = falcon.testing.TestClient(create_app(library, **options))

    def ask(self, method: str, path: str, **request: Any) -> falcon.testing.Result:
        self._refresh()
        result = self._client.simulate_request(method, path, **request)
        check_answer(method, path, result.status_code, result.headers, result.content)
        return result

    def _refresh(self) -> None:
        if self._refreshing:
            self.library.refresh()

    def get(self, path: str, **request: Any) -> falcon.testing.Result:
        return self.ask("GET", path, **request)

    def page(self, path: str, **request: Any) -> falcon.testing.Result:
        """Ask for a page, which openapi.json does not describe."""
        self._refresh()
        return self._client.simulate_get(path, **request)

    def post(self, body: object, **request: Any) -> falcon.testing.Result:
        return self.ask("POST", "/api/search", json=body, **request)

    def slugs(self, path: str, **params: str) -> list[str]:
        result = self.get(path, params=params, params_csv=False)
        assert result.status_code == 200, result.text
        return [each["slug"] for each in result.json["results"]]

    def posted(self, query: str, **members: Any) -> list[str]:
        """Return the slugs that a search by POST finds."""
        return [each["slug"] for each in self.post({"query": query, **members}).json["results"]]

    def read(self, name: str = "one") -> dict[str, Any]:
        """Return a template."""
        result = self.get(f"/api/templates/{name}")
        assert result.status_code == 200, result.text
        return dict(result.json["template"])


_API = "urn:openapi"
_REGISTRY: Registry[Any] = Registry().with_resource(_API, DRAFT202012.create_resource(description()))


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Check an answer against openapi.json: its status is described, its headers and body are as described."""
    lower = {name.lower(): value for name, value in headers.items()}
    assert lower["x-request-id"]
    pointer = _described(method.lower(), path, status)
    if method == "HEAD" or status == 304 or (method, status) == ("OPTIONS", 200):
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
        assert status in {200, 404, 405, 400}, f"{method} {path} answered {status}"
        return None
    assert str(status) in operation["responses"], f"{method} {path} answered {status}, which is not described"
    escaped = name.replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
    return f"{_API}#/paths/{escaped}/{'get' if method == 'head' else method}/responses/{status}"


def two_templates(store: Store) -> Client:
    """Bring `webhook`, with a large content, and the newer `weather`; return a client of both."""
    store.bring(
        template("webhook", title="Receive a webhook", content="Details " * 300, published_at="2026-01-01"),
        template("weather", title="Poll the weather", difficulty="beginner", published_at="2026-02-01"),
    )
    return store.client()
