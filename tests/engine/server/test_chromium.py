"""Real cross-origin requests: pages in a headless Chromium call endpoints of another origin."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.browser import Page
from tests.support.http_ports import served
from tests.support.server_mode import event, route

# What each page tries; `call` gives the status, the body and what a page can read of the headers, or the error's name.
PAGE = """<!doctype html><title>page</title><script>
async function call(method, path, options = {}) {
  try {
    const answer = await fetch(BRIDGE + path, {method, ...options});
    const text = await answer.text();
    let body = text;
    try { body = JSON.parse(text) } catch {}
    return {status: answer.status, body, id: answer.headers.get("X-Request-ID"), etag: answer.headers.get("ETag")};
  } catch (error) { return error.name }
}
(async () => {
  const json = {"Content-Type": "application/json"};
  const guarded = (password) => ({headers: {...json, Authorization: "Basic " + btoa("bob:" + password)}, body: NAME});
  const results = {origin: location.origin};
  results.simple = await call("POST", "/simple", {body: "from " + NAME});
  results.preflighted = await call("PUT", "/guarded", guarded("x"));
  results.wrong = await call("PUT", "/guarded", guarded("y"));
  results.large = await call("POST", "/simple", {body: "x".repeat(2000)});
  results.read = await call("GET", "/last");
  results.missing = await call("GET", "/nothing");
  results.deleted = await call("DELETE", "/simple");
  results.closed = await call("POST", "/closed", {body: "from " + NAME});
  await fetch("/results/" + NAME, {method: "POST", body: JSON.stringify(results)});
})();
</script>"""


class Pages:
    """A web server whose pages call the bridge; what they found out arrives in `results`."""

    def __init__(self, bridge_port: int) -> None:
        self.results: queue.Queue[tuple[str, Any]] = queue.Queue()
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                page = PAGE.replace("NAME", json.dumps(name)).replace("BRIDGE", f'"http://127.0.0.1:{bridge_port}"')
                self._answer(page.encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                pages.results.put((self.path.rpartition("/")[2], json.loads(body)))
                self._answer(b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@contextmanager
def pages_for(bridge_port: int) -> Iterator[Pages]:
    pages = Pages(bridge_port)
    thread = threading.Thread(target=pages.server.serve_forever)
    thread.start()
    yield pages
    pages.server.shutdown()
    thread.join()
    pages.server.server_close()


@pytest.mark.chromium
def test_pages_of_listed_origins_read_every_answer_and_others_none(browser: Page) -> None:
    guard = {"server_username": "bob", "server_password": "x"}
    events = {
        "open": [event(endpoint="/simple"), event("GET", "/last", None, name="Last", source="last")],
        "guarded": [event("PUT", "/guarded")],
        "closed": [event(endpoint="/closed")],
    }
    with served(route(name="Later")) as bridge, pages_for(bridge.port) as pages:
        # One page, two origins: its address by number is listed, by name it is not.
        listed = {"enable_cors": True, "cors_origins": (f"http://127.0.0.1:{pages.port}", "https://elsewhere.example")}
        routes = [
            route(*events["open"], name="Open", **listed),
            route(*events["guarded"], name="Guarded", **listed, **guard),
            route(*events["closed"], name="Closed"),
        ]
        bridge.use(*routes)
        bridge.broker.changed("last", b"21.5")
        with browser.elsewhere() as page:
            page.open(f"http://127.0.0.1:{pages.port}/listed")
            name, found = pages.results.get(timeout=60)
        with browser.elsewhere() as page:
            page.open(f"http://localhost:{pages.port}/unlisted")
            other_name, other = pages.results.get(timeout=60)

        assert (name, found["origin"]) == ("listed", f"http://127.0.0.1:{pages.port}")
        assert found["simple"]["status"] == found["preflighted"]["status"] == 200
        assert found["simple"]["body"] == {"status": "published", "topic": "hook/received"}
        assert len(found["simple"]["id"]) == 36
        assert (found["wrong"]["status"], found["wrong"]["body"]["error"]["code"]) == (401, "unauthorized")
        assert (found["large"]["status"], found["large"]["body"]["error"]["code"]) == (413, "payload_too_large")
        assert (found["read"]["status"], found["read"]["body"]) == (200, 21.5)
        assert found["read"]["etag"].startswith('"')
        assert found["deleted"] == "TypeError"  # the preflight allows no such method

        assert (other_name, other["origin"]) == ("unlisted", f"http://localhost:{pages.port}")
        calls = ("simple", "preflighted", "wrong", "large", "read", "deleted", "closed")
        assert {call: other[call] for call in calls} == dict.fromkeys(calls, "TypeError")

        # Without ENABLE_CORS a page cannot read the answer, but origins are not looked at; all else arrived once.
        assert found["closed"] == "TypeError"
        assert bridge.bodies == [b"from listed", b"listed", b"from listed", b"from unlisted"]
