"""Real cross-origin requests: pages in a headless Chromium call endpoints of another origin."""

import json

from tests.support.browser import Page
from tests.support.http_ports import served
from tests.support.http_recorder import Recorder
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


def test_pages_of_listed_origins_read_every_answer_and_others_none(browser: Page, target: Recorder) -> None:
    # One page, two origins: its address by number is listed, by name it is not.
    listed = {"enable_cors": True, "cors_origins": (f"http://127.0.0.1:{target.port}", "https://elsewhere.example")}
    routes = [
        route(
            event(endpoint="/simple"), event("GET", "/last", None, name="Last", source="last"), name="Open", **listed
        ),
        route(event("PUT", "/guarded"), name="Guarded", **listed, server_username="bob", server_password="x"),
        route(event(endpoint="/closed"), name="Closed"),
    ]
    with served(*routes) as bridge:
        bridge.broker.changed("last", b"21.5")
        page = PAGE.replace("BRIDGE", f'"http://127.0.0.1:{bridge.port}"')
        target.answer = lambda seen: (200, page.replace("NAME", f'"{seen.path.strip("/")}"').encode())
        results = []
        for host in ("127.0.0.1", "localhost"):
            with browser.elsewhere() as opened:
                opened.open(f"http://{host}:{target.port}/{host}")
                while (seen := target.request()).method != "POST":
                    pass
            results.append(json.loads(seen.body))
    found, other = results
    assert [one["origin"] for one in results] == [f"http://{host}:{target.port}" for host in ("127.0.0.1", "localhost")]
    assert found["simple"]["status"] == found["preflighted"]["status"] == 200
    assert found["simple"]["body"] == {"status": "published", "topic": "hook/received"}
    assert len(found["simple"]["id"]) == 36
    assert (found["wrong"]["status"], found["wrong"]["body"]["error"]["code"]) == (401, "unauthorized")
    assert (found["large"]["status"], found["large"]["body"]["error"]["code"]) == (413, "payload_too_large")
    assert (found["read"]["status"], found["read"]["body"]) == (200, 21.5)
    assert found["read"]["etag"].startswith('"')
    assert found["deleted"] == "TypeError"  # the preflight allows no such method
    calls = ("simple", "preflighted", "wrong", "large", "read", "deleted", "closed")
    assert {call: other[call] for call in calls} == dict.fromkeys(calls, "TypeError")
    # Without ENABLE_CORS a page cannot read the answer, but origins are not looked at; all else arrived once.
    assert found["closed"] == "TypeError"
    assert bridge.bodies == [b"from 127.0.0.1", b"127.0.0.1", b"from 127.0.0.1", b"from localhost"]
