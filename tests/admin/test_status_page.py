"""The status page in a real browser: live, by keyboard, without JavaScript, narrow, light and dark, and under attack.

AXE_CORE names the file axe.min.js of axe-core (npm), by which `.ci/run` has the accessibility checked.
"""

import csv
import gzip
import html
import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.admin.live import MOST_FOLLOWERS
from tests.support import doors
from tests.support.admin_client import admin_of, client_route, runs, server_route
from tests.support.asking import ask
from tests.support.browser import Page
from tests.support.doors import DOORS, Hosting
from tests.support.embedded_broker import Host, configuration, hosting
from tests.support.http_recorder import recording
from tests.support.http_target import Peer, Seen, Target
from tests.support.waiting import eventually

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">'\"&</script><script>document.title='hacked'</script>"
LIVE = "document.querySelector('[data-live]').innerText === 'live'"
SEEN = "seen.join(' ')"
SEE = """
    globalThis.seen = [];
    document.addEventListener('DOMContentLoaded', () => {
        const count = countRun;
        countRun = (run) => { seen.push(run.topic); count(run); };
    });
"""
LOADS = {  # how the list is read: after the test has said so, or before
    "before": "(at) => new Promise((go) => goOn = go).then(() => read(at))",
    "behind": "(at) => read(at).then((list) => new Promise((go) => goOn = () => go(list)))",
}
FAILING = """DEFINE ROUTE Alarms WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:9" WITH ENABLE_CLIENT "true" WITH RETRIES "0"
        WITH USERNAME "bob" WITH PASSWORD "hush-hush-1"
    ADD EVENT Send WITH SOURCE_TOPIC "alarms/#" WITH METHOD "GET" WITH ENDPOINT "/a"
        WITH HEADERS ADD "X-Api-Key" "hush-hush-2" ADD "X-Text" "hush-hush-1 again"
"""


def answer(seen: Seen) -> tuple[int, bytes]:
    return (404 if seen.path.endswith("/bad") else 200), b"{}"


pytestmark = pytest.mark.usefixtures("hurried")


@contextmanager
def showing(hosting: Hosting) -> Iterator[Any]:
    """Run a bridge with calls that have succeeded and failed."""
    with recording() as target:
        target.answer = answer
        routes = client_route(target.url) + server_route() + FAILING
        with hosting(routes, admin_port=0) as running:
            client = running.client("done/#")
            for topic in ("orders/1", "orders/bad"):
                client.publish(topic, b"{}")
                client.message()
            client.publish("alarms/" + HOSTILE.replace("#", ""), b'{"door": {"open": true}, "rooms": [1]}')
            eventually(lambda: bool(admin_of(running).calls("Alarms")))
            yield running


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with showing(hosting) as running:
        yield running


@pytest.fixture(scope="module", params=DOORS)
def either(request: pytest.FixtureRequest) -> Iterator[doors.Host]:
    with showing(request.param) as running:
        yield running


def url(host: doors.Host, path: str = "/") -> str:
    return f"http://127.0.0.1:{admin_of(host).port}{path}"


def called(client: doors.Client, name: str) -> bool:
    client.publish(f"orders/{name}", b"{}")
    client.message()
    return True


def call_until_shown(client: doors.Client, name: str, page: Page) -> None:
    """Call until a page has shown it: that the page follows takes a moment to reach the bridge."""
    shows = f"{SEEN}.includes('orders/{name}')"
    # Each call costs all pages that show it processor time.
    eventually(lambda: called(client, name) and bool(page.evaluate(shows)), pause_seconds=0.1)


def newest_run(host: doors.Host) -> str:
    return str(runs(admin_of(host), "?route=Orders")[0]["id"])


def test_numbers_change_while_calls_run_without_a_reload(either: doors.Host, page: Page) -> None:
    page.open(url(either))
    page.evaluate("window.mark = 'not reloaded'")
    page.wait(LIVE)
    cell = "document.querySelector('[data-route=Orders] [data-cell=succeeded]').innerText"
    before = int(page.evaluate(cell))
    client = either.client("done/#")
    for _ in range(5):
        client.publish("orders/1", b"{}")
        client.message()
    page.wait(f"{cell} === '{before + 5}'")
    page.evaluate("document.querySelector('[data-live]').click()")
    assert page.text("[data-live]") == "paused"
    assert called(client, "1")
    shown = {"state": "live", "routes": {"summary": "", "sections": {}, "names": [], "rows": []}}
    page.evaluate(f"port.onmessage({{data: {json.dumps(shown)}}})")  # what was on its way
    assert (page.evaluate(cell), page.text("[data-live]")) == (str(before + 5), "paused")
    page.evaluate("document.querySelector('[data-live]').click()")
    page.wait(f"{cell} === '{before + 6}' && {LIVE}")
    assert page.evaluate("window.mark") == "not reloaded"


def follow(host: Host) -> http.client.HTTPResponse:
    """Follow the changes, as soon as there is room for one more."""
    found: list[http.client.HTTPResponse] = []

    def is_live() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", admin_of(host).port, timeout=20)
        connection.request("GET", "/api/changes")
        found.append(connection.getresponse())
        if found[-1].status != 200:
            found.pop().close()
            connection.close()
        return bool(found)

    eventually(is_live, pause_seconds=0.1)
    return found[0]


@contextmanager
def following(host: Host, count: int) -> Iterator[None]:
    """Follow the changes as other browsers do."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(follow(host))
        yield


def test_a_page_beyond_the_limit_says_that_it_is_not_live_and_becomes_it_when_another_one_is_not_seen(
    host: Host, page: Page
) -> None:
    page.open("data:,")  # the test before may have left it at a page that is live
    with following(host, MOST_FOLLOWERS):
        page.open(url(host))
        page.wait("document.querySelector('[data-live]').innerText === 'not live, trying again'")
    page.wait(LIVE)
    page.hide()
    with following(host, MOST_FOLLOWERS):  # a tab that is not seen holds no connection
        pass


NO_SHARED_WORKER = """
    delete window.SharedWorker;
    window.streams = 0;
    window.EventSource = class extends EventSource { constructor(path) { super(path); window.streams += 1; } };
"""


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.long)])
def test_many_open_pages_of_a_browser_share_one_stream_are_live_and_leave_room_for_more(
    host: Host, browser: Page, count: int
) -> None:
    browser.open("data:,")  # the test before may have left it at a page that is live
    with browser.elsewhere() as first:
        tabs = [first, *(first.another() for _ in range(count - 1))]
        for number, tab in enumerate(tabs):
            tab.before_scripts(SEE)
            tab.open(url(host, ("/", "/routes/Orders", "/routes/Alarms")[number % 3]))
        assert all(tab.evaluate("!document.hidden") for tab in tabs)
        for tab in tabs:
            tab.wait(LIVE)
        with following(host, MOST_FOLLOWERS - 1):  # all that there is room for but one
            client = host.client("done/#")
            for tab in tabs[1::3]:
                call_until_shown(client, "follows", tab)
            called(client, "tabs")
            status = {one["name"]: one for one in admin_of(host).get("/api/routes").json["routes"]}["Orders"]
            cell = "document.querySelector('[data-route=Orders] [data-cell=succeeded]').innerText"
            for tab in tabs[0::3]:
                tab.wait(f"{cell} === '{status['messages']['succeeded']}'")
            for tab in tabs[1::3]:
                tab.wait(f"{SEEN}.split('orders/tabs').length === 2")
            later = first.another()
            later.open(url(host, "/routes/Intake"))
            later.wait(LIVE)
        assert first.errors == []


def test_a_call_is_shown_once_on_each_page_while_pages_of_other_routes_come_and_go(host: Host, browser: Page) -> None:
    with browser.elsewhere() as page:
        page.before_scripts(SEE)
        page.open(url(host, "/routes/Orders"))
        page.wait(LIVE)
        client, other = host.client("done/#"), page.another()
        call_until_shown(client, "probe", page)
        for number in range(20):
            if number % 5 == 2:
                other.open(url(host, ("/routes/Alarms", "/", "/routes/Intake", "/routes/Alarms")[number // 5]))
            called(client, f"n{number}.")
        page.wait(f"{SEEN}.includes('orders/n19.')")
        other.close()
        seen = re.findall(r"orders/n(\d+)\.", page.evaluate(SEEN))
        assert seen == [str(number) for number in range(20)]


STATES = """
    globalThis.told = [];
    document.addEventListener('DOMContentLoaded', () => {
        const state = document.querySelector('[data-live]');
        const note = () => told.push(state.textContent, banner.hidden ? '' : banner.innerText.slice(0, 18));
        new MutationObserver(note).observe(state, {childList: true});
    });
"""


@pytest.mark.parametrize("shared", [True, False])
def test_a_page_whose_bridge_process_is_replaced_says_so_and_shows_calls_again(
    page: Page, shared: bool, unused_port: int
) -> None:
    with recording() as target, hosting(client_route(target.url), admin_port=unused_port, processes=1) as running:
        if not shared:
            page.before_scripts(NO_SHARED_WORKER)
        page.before_scripts(SEE)
        page.before_scripts(STATES)
        page.open(url(running, "/routes/Orders"))
        client = running.client("done/#")
        call_until_shown(client, "before", page)
        running.kill_bridge()
        page.wait("told.join().endsWith('connection lost, trying again,Connection lost on,live,')")
        call_until_shown(client, "after", page)


@pytest.mark.parametrize("path", ["/", "/routes/Orders"])
def test_a_browser_without_shared_workers_has_one_stream_for_each_page(host: Host, page: Page, path: str) -> None:
    page.before_scripts(NO_SHARED_WORKER)
    page.open(url(host, path))
    page.wait(LIVE)
    assert page.evaluate("[typeof SharedWorker, streams]") == ["undefined", 1]


def test_what_is_not_ready_and_which_routes_there_are_changes_live(page: Page) -> None:
    gone = client_route("http://127.0.0.1:9", name="Gone")
    with hosting(server_route("Kept") + gone, admin_port=0, reload_seconds=0.02) as running:
        page.open(url(running))
        names = "[...document.querySelectorAll('[data-route]')].map((row) => row.dataset.route).join()"
        assert page.evaluate(names) == "Gone,Kept"
        assert page.evaluate("document.querySelector('[data-trouble]').hidden")
        running.path.write_text(f"DEFINE ROUTE Broken WITH TYPE REST_API\n    ADD {HOSTILE}\n")
        page.wait("!document.querySelector('[data-trouble]').hidden")
        failed = "The last reload failed, the routes before it are in use: "
        assert page.text("[data-trouble] li").startswith(failed)
        running.path.write_text(server_route("Kept"))
        page.wait(f"document.querySelector('[data-trouble]')?.hidden && {names} === 'Kept'")
        running.path.write_text(server_route("Kept") + FAILING)
        page.wait(f"{names} === 'Alarms,Kept'")
        assert page.evaluate("document.images.length") == 0


def test_new_runs_are_announced_and_an_opened_one_stays_where_it_is_until_they_are_asked_for(
    host: Host, page: Page
) -> None:
    page.open(url(host, "/routes/Orders?topic=orders/bad"))
    page.wait(LIVE)
    page.evaluate("document.querySelector('[data-runs] summary').click()")
    place = "document.querySelector('[data-runs] [open]').getBoundingClientRect().top + scrollY"
    opened = "document.querySelector('[data-runs] [open]').dataset.run"
    before, name = page.evaluate(place), page.evaluate(opened)
    assert "Check BASE_ADDRESS and ENDPOINT." in page.text("[data-runs] [open]")
    client, is_quiet = host.client("done/#"), "document.querySelector('[data-fresh]').hidden"
    assert page.text("main [role=status]:has([data-fresh])") == "The newest first."
    assert page.evaluate("document.querySelector('nav [aria-current=true]').textContent") == "Routes"
    eventually(lambda: called(client, "bad") and not page.evaluate(is_quiet))
    page.wait(f"fresh.has('{newest_run(host)}')")
    assert re.fullmatch(r"\d+ new runs?: show", page.text("[data-fresh]"))
    assert page.evaluate(place) == before
    count = page.evaluate("document.querySelectorAll('[data-run]').length")
    page.evaluate("document.querySelector('[data-fresh]').click()")
    page.wait(f"document.querySelectorAll('[data-run]').length > {count}")
    assert page.evaluate(opened) == name
    assert page.evaluate(is_quiet)


def test_a_run_that_ends_while_the_list_is_read_is_announced_and_one_that_is_listed_is_not(
    host: Host, page: Page
) -> None:
    page.open(url(host, "/routes/Orders"))
    page.wait(LIVE)
    client = host.client("done/#")
    eventually(lambda: called(client, "1") and page.evaluate("fresh.size > 0"))
    page.wait(f"fresh.has('{newest_run(host)}')")
    page.evaluate("read = load, goOn = null")
    for waits, comes_in_time in (("before", True), ("behind", False)):
        page.evaluate(f"load = {LOADS[waits]}; goOn = null; document.getElementById('list').children[0].isOld = true")
        page.evaluate("document.querySelector('[data-fresh]').click()")
        page.wait("goOn !== null")
        called(client, "1")
        page.wait(f"fresh.has('{newest_run(host)}')")
        assert page.text("[data-fresh]") == "1 new run: show"
        page.evaluate("goOn()")
        page.wait("!document.getElementById('list').children[0].isOld")
        assert page.evaluate("document.querySelector('[data-fresh]').hidden") is comes_in_time


def test_the_keyboard_alone_leads_to_a_route_and_opens_a_failure(host: Host, page: Page) -> None:
    page.open(url(host))
    page.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to content"
    for _ in range(20):
        page.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Alarms":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.press("Enter")
    page.wait("document.title.startsWith('Alarms') && document.readyState === 'complete'")
    for _ in range(30):
        page.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.press("Enter")
    page.wait("document.querySelector('[data-runs] details').open")
    assert "connection_failed" in page.text("[data-runs] details")


@pytest.mark.parametrize("path", ["/", "/routes/Orders", "/routes/Alarms", "/runs", "/flow", "/playground"])
def test_nothing_is_wider_than_360_pixels_in_light_and_dark_nor_a_barrier(host: Host, page: Page, path: str) -> None:
    page.size(360, 640)
    page.open(url(host, path))
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert page.fits()
        assert page.is_dark() is (scheme == "dark")
    if path == "/":  # the error below each route too
        assert page.evaluate("[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth)")
        assert page.evaluate("document.querySelector('[data-route=Alarms] [data-cell=error]').checkVisibility()")
    if "AXE_CORE" in os.environ and path != "/playground":  # which is looked at with all that it can show
        page.size(360 if path == "/flow" else 1280, 800)
        assert barriers(page) == []


def barriers(page: Page) -> list[list[str]]:
    """Return what axe-core finds on a status page on which all is shown that can be."""
    page.evaluate("document.querySelector('[data-trouble]')?.removeAttribute('hidden')")
    page.evaluate("tell('connection lost, trying again'); true")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    return page.barriers()


SHOWN = "document.querySelector('[data-runs]').textContent"


def show(page: Page, topic: str) -> None:
    """Ask the page for its new runs until one with this topic is among them."""
    page.evaluate("offerRuns('')")
    eventually(
        lambda: (
            page.evaluate("document.querySelector('[data-fresh]').click()") is None
            and page.evaluate(f"{SHOWN}.includes({json.dumps(topic)})")
        )
    )


def test_hostile_topics_run_nothing_and_break_nothing_live_and_rendered(either: doors.Host, page: Page) -> None:
    page.open(url(either, "/routes/Alarms"))
    assert "alarms/" + HOSTILE.replace("#", "") in page.evaluate(SHOWN)
    page.wait(LIVE)
    either.client().publish("alarms/live" + HOSTILE, b"{}")
    show(page, "alarms/live" + HOSTILE)
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.title").startswith("Alarms")
    members = json.dumps(dict.fromkeys(("reason", "health", "ok"), HOSTILE))
    shown = "document.querySelector('[data-cell=reason]').textContent"  # at once: the next live update has another one
    assert page.evaluate(f"(update(document.body, {members}), {shown})") == HOSTILE
    assert page.evaluate("[document.scripts.length, document.images.length]") == [2, 0]


def test_a_hostile_reason_phrase_runs_nothing_live_and_rendered(page: Page) -> None:
    def hostile(peer: Peer) -> None:
        while peer.request():
            phrase = HOSTILE.encode()
            peer.send(b"HTTP/1.1 499 " + phrase + b"\r\nX-Error: " + phrase + b"\r\nContent-Length: 0\r\n\r\n")

    with Target(hostile) as target, hosting(client_route(f"http://127.0.0.1:{target.port}"), admin_port=0) as running:
        page.open(url(running))
        page.wait(LIVE)
        client = running.client("done/#")
        client.publish("orders/live", b"{}")
        client.message()
        problems = "document.querySelector('[data-problems]').textContent"
        page.wait(f"{problems}.includes('server answered 499')")
        live = page.evaluate(problems)
        page.open(url(running))
        rendered = page.evaluate(problems)
        for shown in (live, rendered):
            assert "server answered 499" in shown
        assert page.text("[data-route=Orders] [data-cell=error]").startswith("http_status: the server answered 499")
        assert page.evaluate("[document.scripts.length, document.images.length]") == [2, 0]


def test_a_hostile_path_of_a_request_is_text_among_the_runs() -> None:
    route = server_route().replace('"/hook"', '"/hook/{name}"').replace('"received"', '"received/{path.name}"')
    with hosting(route, admin_port=0) as running:
        path = "/hook/<img%20src=x%20onerror=alert(1)>'\"&"
        assert ask(running.http_port, path, b"{}").status == 200
        shown = admin_of(running).text("/routes/Intake")
        assert "<img" not in shown
        text = html.unescape(shown).replace("<wbr>", "")
        assert path in text and "received/<img src=x onerror=alert(1)>'\"&" in text


@pytest.mark.parametrize("has_scripts", [True, False], ids=["with scripts", "without"])
def test_the_playground_shows_faults_flow_and_requests_of_what_is_typed(
    host: Host, page: Page, has_scripts: bool
) -> None:
    page.size(360, 640)
    if not has_scripts:
        page.disable_scripts()
    page.open(url(host, "/playground"))
    try_definition(page, FAILING.replace('WITH RETRIES "0"', f'WITH RETRYS "0" WITH {HOSTILE}'))
    page.wait("document.querySelector('.faults') !== null && document.readyState === 'complete'")
    assert "did you mean RETRIES?" in page.text(".faults")
    assert page.fits()
    assert page.evaluate("document.title.startsWith('Playground')"), "nothing hostile ran"
    if has_scripts:
        page.evaluate("document.querySelector('[data-place]').click()")
        assert page.evaluate("document.activeElement.id + document.activeElement.selectionStart").startswith("def")
    try_definition(page, FAILING)
    page.wait("document.querySelector('.ways') !== null && document.readyState === 'complete'")
    assert page.text(".ways").split("\n")[:3] == ["alarms/#", "↓", "Alarms"]
    assert "GET http://127.0.0.1:9/a" in page.text("#result")
    assert "reads no secrets" not in page.text("#result")
    assert page.fits()
    assert page.errors == []
    if has_scripts and "AXE_CORE" in os.environ:
        assert page.barriers() == []
    try_definition(page, FAILING.replace('"hush-hush-2"', 'GET SECRET "TOKEN"'))
    page.wait("document.body.innerText.includes('It uses the name instead of the value: TOKEN.')")


def try_definition(page: Page, text: str) -> None:
    """Submit a definition, and wait for the page that follows."""
    write = f"document.getElementById('definition').value = {json.dumps(text)}"
    page.evaluate(f"window.isFormer = true; {write}; document.forms[0].submit()")
    page.wait("window.isFormer === undefined && document.readyState === 'complete'")


def test_the_drawing_is_live_and_a_list_without_scrolling_sideways_on_a_phone(host: Host, page: Page) -> None:
    box = "document.querySelector('svg [data-box=Alarms]')"
    page.size(1280, 800)
    page.open(url(host, "/flow"))
    page.wait(LIVE)
    page.evaluate(f"{box}.dataset.health = 'Green'; window.mark = 'not reloaded'")
    page.wait(f"{box}.dataset.health !== 'Green' && {box}.querySelector('title').textContent.startsWith('Alarms (')")
    assert not page.evaluate("document.querySelector('.ways').checkVisibility()")
    page.size(360, 640)
    assert page.evaluate("document.querySelector('.ways').checkVisibility()")
    assert not page.evaluate("document.querySelector('svg.drawing').checkVisibility()")
    assert page.fits()
    assert page.text(".ways li:has([data-box=Orders])").split("\n")[0] == "orders/+"
    assert page.evaluate("window.mark") == "not reloaded"


def test_the_last_error_has_an_age_as_other_times_have(host: Host, page: Page) -> None:
    page.open(url(host))
    assert re.match(r"Last error (.* ago|now):", page.text("[data-route=Alarms] [data-error]"))
    page.wait(LIVE)
    # At once: the next live update has another time.
    update = "update(document.querySelector('[data-route=Alarms]'), {error_time: '2020-01-31T12:00:00Z'})"
    assert "2020" in page.evaluate(f"({update}, document.querySelector('[data-route=Alarms] [data-error]').innerText)")


def test_the_runs_of_all_routes_are_a_page_with_filters(host: Host) -> None:
    admin = admin_of(host)
    every = html.unescape(admin.get("/runs?all").text).replace("<wbr>", "")
    assert 'class="what">Alarms/Send: alarms/' in every
    assert 'class="what">Orders/Send: orders/bad' in every
    assert "Took</span>" in every, "columns have headings"
    first = admin.text("/")
    assert 'title="What messages waited in the bridge: 99 of 100' in first
    assert f'colspan="{first.partition("</thead>")[0].count("<th ")}"' in first, "no gap beside the last column"
    failed = html.unescape(admin.get("/runs?route=Orders&outcome=failed&code=http_status").text).replace("<wbr>", "")
    assert failed.count("<details data-run=") == failed.count('class="what">Orders/Send: orders/bad') > 0
    reason = ' <span class="why">the server answered 404 Not Found</span></summary>'
    assert failed.count(reason) == failed.count("<details data-run=")
    assert reason in admin.text("/routes/Orders")
    assert "None that the filters let through" in admin.get("/runs?route=Gone").text
    (link,) = re.findall(r'href="(/api/runs\.csv[^"]+)"', failed)
    table = admin.get(link)
    assert (table.headers["Content-Type"], table.text.partition(",")[0]) == ("text/csv; charset=utf-8", "id")
    assert {row["error.code"] for row in csv.DictReader(table.text.splitlines())} == {"http_status"}
    for name, column in (("routes", "name"), ("problems", "target")):
        listed = [row[column] for row in csv.DictReader(admin.get(f"/api/{name}.csv").text.splitlines())]
        assert listed == [one[column] for one in admin.get(f"/api/{name}").json[name]]
    assert "topic " in admin.get("/runs?topic=a%23").text


def test_what_is_not_there_is_a_page_for_a_person_and_json_for_a_program(host: Host) -> None:
    admin = admin_of(host)
    for path, message in (("/no", "There is nothing here"), ("/runs/no", "no longer known"), ("/routes/n", "no route")):
        page = admin.get(path, Accept="text/html,*/*;q=0.8", Accept_Encoding="gzip")
        assert (page.status, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert f"{message}" in gzip.decompress(page.body).decode()
        assert message in admin.get(path).json["error"]["message"]
        assert "GET /" not in gzip.decompress(page.body).decode()
    assert admin.get("/api/runs/no", Accept="text/html").json["error"]["code"] == "not_found"


def test_it_reads_without_javascript(host: Host, page: Page) -> None:
    page.disable_scripts()
    page.open(url(host))
    assert page.text("[data-summary]").startswith("3 routes: ")
    assert "connection_failed: http://127.0.0.1:9 refused the connection" in page.text("[data-route=Alarms]")
    assert "Without JavaScript" in page.text("noscript")
    page.open(url(host, "/routes/Orders"))
    assert "404 http_status" in page.text("[data-runs]")


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE does not name axe.min.js of axe-core")
@pytest.mark.parametrize("path", ["/flow?route=Orders", "/runs/", "/runs/no"])
def test_an_accessibility_check_finds_nothing(host: Host, page: Page, path: str) -> None:
    run = admin_of(host).calls("Alarms")[0]["id"]
    page.size(360 if path.startswith("/flow") else 1280, 800)
    page.open(url(host, re.sub("/runs/$", f"/runs/{run}", path)))
    assert barriers(page) == []


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE does not name axe.min.js of axe-core")
def test_an_accessibility_check_finds_nothing_without_routes_and_without_calls(page: Page, tmp_path: Path) -> None:
    for routes, path in (("", "/"), ("", "/flow"), (server_route(), "/routes/Intake")):
        (tmp_path / "a.lot").write_text(routes)
        running = Host(configuration(tmp_path, admin_port=0))
        try:
            page.open(url(running, path))
            assert page.barriers() == []
        finally:
            running.stop()


def test_definitions_mask_secrets_and_what_is_inserted_is_escaped(host: Host) -> None:
    text = html.unescape(admin_of(host).get("/routes/Alarms").text)
    assert "hush-hush" not in text
    assert 'WITH PASSWORD "***"' in text
    assert 'ADD "X-Api-Key" "***"' in text
    assert 'ADD "X-Text" "*** again"' in text
    raw = admin_of(host).get("/routes/Alarms").text
    assert "<img" not in raw
    assert raw.count("<script") == 2


def test_every_page_has_a_strict_content_security_policy_and_loads_nothing_from_elsewhere(host: Host) -> None:
    admin = admin_of(host)
    pages = ("/", "/routes/Orders", "/flow", "/playground")
    for path in (*pages, "/site.css", "/site.js", "/icon.svg", "/script.js", "/live.js"):
        found = admin.get(path)
        assert found.status == 200
        policy = found.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "worker-src 'self'; " in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert (found.headers["X-Frame-Options"], found.headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert not re.search(r"""(?:src|href|url\()=?["']?(?:https?:)?//""", found.text)


def test_a_browser_keeps_what_pages_share_as_long_as_it_is_the_same_and_nothing_else(host: Host) -> None:
    admin = admin_of(host)
    page = admin.get("/")
    shared = re.findall(r'(?:src|href)="(/[^"]+)\?(\w+)"', page.text)
    assert [path for path, _ in shared] == ["/icon.svg", "/site.css", "/site.js", "/script.js"]
    for path, version in shared:
        kept, other, asked = (admin.get(f"{path}{query}") for query in (f"?{version}", f"?{version}0", ""))
        assert kept.headers["Cache-Control"] == "private, max-age=31536000, immutable"
        assert [one.headers["Cache-Control"] for one in (other, asked, page)] == ["no-store"] * 3
        assert kept.headers["Content-Security-Policy"] == page.headers["Content-Security-Policy"]
        assert kept.body == other.body == asked.body


def test_the_drawing_leads_from_topics_to_servers_and_from_endpoints_to_topics(host: Host) -> None:
    text = html.unescape(admin_of(host).get("/flow").text)
    for name in ("orders/+", "Orders", "http://127.0.0.1:9", f"POST :{host.http_port}/hook", "Intake", "received"):
        assert f"<title>{name}" in text
    assert text.count('class="edge way"') == 3 + 2 + 2, "and no legend for one kind"


@pytest.mark.parametrize("count", [210, pytest.param(1000, marks=pytest.mark.long)])
def test_many_routes_are_shown_and_measured_and_the_drawing_says_what_it_leaves_out(count: int) -> None:
    routes = "".join(server_route(f"R{number}").replace("/hook", f"/hook{number}") for number in range(count))
    with hosting(routes, admin_port=0, processes=1) as running:
        admin = admin_of(running)
        assert admin.get("/").text.count("<tbody data-route=") == count
        assert [admin.get(f"/routes/R{number}").status for number in range(10)] == [200] * 10
        assert len(admin.get("/api/routes").json["routes"]) == count
        assert sum(name == "rest_bridge_queued" for name, _ in admin.samples()) == count
        assert f"{count - 200} more routes are not drawn" in admin.get("/flow").text
