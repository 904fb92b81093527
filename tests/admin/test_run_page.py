"""From the status page to a successful retry, in a real browser: at most three clicks, on a phone too."""

import functools
import html
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge import load_routes
from amqtt_rest_bridge.admin import problems
from tests.admin.test_kept_requests import ASKS, ask, kept
from tests.support import asking, embedded_broker
from tests.support.admin_client import (
    TOKEN,
    Admin,
    admin_of,
    admin_with_token,
    bridging,
    client_route,
    failed,
    outcome,
    post,
    runs,
    server_route,
)
from tests.support.browser import Page
from tests.support.doors import Client, Hosting
from tests.support.embedded_broker import Host, configuration
from tests.support.full_disk import full_disk, tidy
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, recording
from tests.support.waiting import SECONDS, eventually

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">'\"&</script>"
PROBLEMS = "document.querySelector('[data-problems]').innerText"
FIRST_PROBLEM = "[data-problems] .actions a"
LOSSLESS = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'
pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        recorder.answer = lambda _: (422, HOSTILE.encode())
        yield recorder


@pytest.fixture
def refused(target: Recorder) -> Iterator[tuple[Admin, Client]]:
    """A bridge within a broker, whose messages the target refuses."""
    with bridging(embedded_broker.hosting, client_route(target.url, config="WITH RETRIES 0")) as (_, admin, client):
        yield admin, client


@pytest.fixture
def phone(page: Page) -> Page:
    """A page of the size of a phone's."""
    page.size(360, 640)
    return page


def url(admin: Admin, path: str = "/") -> str:
    return f"http://any:{TOKEN}@127.0.0.1:{admin.port}{path}"


def click(page: Page, selector: str, then: str) -> None:
    """Click on what leads to another page, and wait until that has been read and its text has `then`."""
    page.evaluate("window.isLeft = true")
    page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
    arrived = "!window.isLeft && document.readyState === 'complete'"
    page.wait(f"{arrived} && document.querySelector('main')?.innerText.includes({then!r})")
    assert page.fits()


@pytest.mark.parametrize(("width", "scripts"), [(360, True), (1280, False)])
def test_the_cause_the_message_and_a_retry_are_three_clicks_away(
    target: Recorder, refused: tuple[Admin, Client], page: Page, width: int, scripts: bool
) -> None:
    admin, client = refused
    name = failed(client, "orders/7", HOSTILE.encode())
    target.answer = lambda _: (200, b"{}")
    if not scripts:
        page.disable_scripts()
    page.size(width, 800)
    page.open(url(admin))
    assert "The server answered 422" in page.text("[data-problems]")
    assert page.fits()
    click(page, FIRST_PROBLEM, "Run of Orders")
    assert page.text("main").count(HOSTILE) == 3, "of message, request and response"
    assert page.evaluate("document.images.length") == 0
    click(page, "form button", "Sent again as")
    client.message()
    (again,) = [run["id"] for run in runs(admin) if run["retry_of"] == name]
    eventually(lambda: outcome(admin, again) == "succeeded")
    click(page, "[role=status] a", "succeeded")
    assert page.evaluate("location.pathname") == f"/runs/{again}"
    assert page.text(".outcome") == "succeeded"


def test_the_lines_for_a_shell_do_not_break_inside_an_option_on_a_phone(
    refused: tuple[Admin, Client], phone: Page
) -> None:
    admin, client = refused
    name = failed(client, payload=b'{"a": " -H <b> --topic "}')
    phone.open(url(admin, f"/runs/{name}"))
    lines = "[...document.querySelectorAll('#try .option, #curl .option')]"
    shown = phone.evaluate(f"{lines}.map((one) => one.textContent)")
    assert {"--topic", "--payload", "-H"} <= {*shown}
    assert ".venv/bin/rest-bridge where rest-bridge is not in the PATH" in phone.text("section:has(#try)")
    assert phone.evaluate("document.querySelector('nav [aria-current=true]').textContent") == "Runs"
    for width in range(360, 440, 4):
        phone.size(width, 640)
        assert phone.evaluate(f"{lines}.every((one) => one.getClientRects().length === 1)"), width
        assert phone.fits()
    assert " --topic orders/7 --payload '{" in phone.evaluate("document.getElementById('try').textContent")


def test_each_kind_of_trouble_appears_by_itself_with_its_cause(target: Recorder, page: Page) -> None:
    dead = client_route("http://127.0.0.1:9", name="Dead").replace("orders/+", "dead/+")
    signed = server_route("Signed").replace('"received"', '"received" WITH SIGNATURE_SECRET "hush-hush-hush"')
    guarded = server_route("Guarded").replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "x" WITH SERVER_PORT')
    routes = client_route(target.url) + dead + signed + guarded.replace("/hook", "/guarded")
    with bridging(embedded_broker.hosting, routes) as (host, admin, client):
        page.open(url(admin))
        assert page.evaluate("document.querySelector('[data-problems]').hidden")
        client.publish("orders/7", b"{}")
        client.publish("dead/7", b"{}")
        for path in ("/hook", "/guarded", "/hok?token=hush"):
            headers = {"X-Hub-Signature-256": "sha256=00", "Authorization": "Bearer wrong"}
            assert asking.ask(host.http_port, path, b"{}", **headers).status >= 400
        codes = ["422 http_status", "connection_failed", "401 invalid_signature", "401 unauthorized"]
        page.wait(f"{codes}.every((code) => {PROBLEMS}.includes(code))")
        (unsigned,) = [run for run in runs(admin) if run["code"] == "invalid_signature"]
        assert "its caller has to mend" in admin.text(f"/runs/{unsigned['id']}")
        page.wait("!document.querySelector('[data-unmatched]').hidden")
        assert not page.evaluate(f"{PROBLEMS}.includes('404')"), "it is shown once"
        cells = "[...document.querySelectorAll('[data-unmatched] td')].slice(0, 4).map((cell) => cell.innerText)"
        assert page.evaluate(f"{cells}.join('|')") == f"1|POST /hok|{host.http_port}|404"
        reason = "document.querySelector('[data-route=Guarded] [data-cell=reason]').innerText"
        page.wait(f"{reason}.startsWith('callers refused: 1 of the last 1 requests')")
        assert page.text("[data-route=Guarded] .health") == "Yellow"
        page.size(360, 640)
        assert page.fits()


def test_a_message_that_a_full_disk_refused_is_sent_again_in_three_clicks(
    target: Recorder, phone: Page, tmp_path: Path
) -> None:
    target.answer = lambda _: (200, b"{}")
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "spool": str(tmp_path / "spool.db")}
    with embedded_broker.hosting(client_route(target.url, more=LOSSLESS), **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        phone.open(url(admin))
        with full_disk():
            failed(client, "orders/1", b"1" * 10_000)
            phone.wait(f"{PROBLEMS}.includes('could not be written to the spool')")
            refuses = "The spool refuses messages"  # said of the broker within a second
            phone.wait(f"document.querySelector('[data-trouble]').innerText.includes({refuses!r})")
            assert phone.text("[data-cell=error]") == "overloaded", "the reason is there already"
        host.wait(tidy(host))
        click(phone, FIRST_PROBLEM, "1111111111")
        assert "Nothing was sent" in phone.text("main")
        click(phone, "form button", "Sent again as")
        assert client.message() == ("done/1", b"{}")


def test_a_problem_appears_with_the_first_try_and_its_run_with_a_retry_once_the_tries_have_ended(
    target: Recorder, phone: Page, hosting: Hosting
) -> None:
    gate, numbers = Gate(), itertools.count()
    later = gate.before(lambda _: (503, b"closed today"))
    target.answer = lambda seen: later(seen) if next(numbers) else (503, b"closed today")
    with bridging(hosting, client_route(target.url, config="WITH RETRIES 1")) as (_, admin, client):
        phone.open(url(admin))
        client.publish("orders/1", b"4444444444")
        phone.wait(f"{PROBLEMS}.includes('trying again')")
        assert gate.entered.get(timeout=SECONDS).body == b"4444444444", "the second try, which has not ended"
        shown = phone.text("[data-problems]")
        for part in ("503 http_status", target.url, "The server answered 503", "Orders", "1 ×"):
            assert part in shown
        assert phone.fits()
        click(phone, FIRST_PROBLEM, "another one follows")
        gate.open.set()
        client.message()
        phone.wait("document.querySelector('main')?.innerText.includes('4444444444')")
        assert "closed today" in phone.text("main")
        target.answer = lambda _: (200, b"{}")
        click(phone, "form button", "Sent again as")
        client.message()
        click(phone, "[role=status] a", "succeeded")


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_a_request_that_was_not_served_is_published_again_in_three_clicks(
    phone: Page, scripts: bool, hosting: Hosting
) -> None:
    with bridging(hosting, ASKS, "asked/#") as (host, admin, client):
        if not scripts:
            phone.disable_scripts()
        status, name = ask(host, body=b"3333333333")
        assert (status, client.message()) == (504, ("asked/7", b"3333333333"))
        kept(admin, name)
        eventually(admin.problems)
        phone.open(url(admin))
        assert "504 reply_timeout" in phone.text("[data-problems]")
        assert "replies on REPLY_TOPIC" in phone.text("[data-problems] .hint"), "the hint is for the operator"
        click(phone, FIRST_PROBLEM, "3333333333")
        click(phone, "form button", "Sent again as")
        assert client.message() == ("asked/7", b"3333333333")
        click(phone, "[role=status] a", "succeeded")


def test_a_failed_try_of_a_lossless_call_leaves_the_way_to_the_run_that_ended(phone: Page, tmp_path: Path) -> None:
    dead = client_route("http://127.0.0.1:9", name="Dead", config="WITH RETRIES 0")
    lossless = client_route("http://127.0.0.1:9", name="Kept", more=LOSSLESS).replace("orders/+", "kept/+")
    spool = str(tmp_path / "spool.db")
    with bridging(embedded_broker.hosting, dead + lossless, spool=spool) as (_, admin, client):
        failed(client, "orders/1", b"3333333333")
        client.publish("kept/1", b"{}")
        phone.open(url(admin))
        phone.wait(f"{PROBLEMS}.includes('Kept')")
        assert "`" not in phone.text("[data-problems]")
        assert "trying 1 of the 2 messages again" in phone.text("[data-problems]")
        click(phone, FIRST_PROBLEM, "3333333333")


def test_numbers_of_a_route_with_an_error_stay_on_one_line(refused: tuple[Admin, Client], page: Page) -> None:
    admin, client = refused
    failed(client)
    page.open(url(admin))
    page.wait("document.querySelector('[data-cell=error]').innerText.includes('the server answered 422')")
    for width, cell in itertools.product((360, 800), ("rate", "failed")):
        page.size(width, 640)
        shown = f"document.querySelector('[data-cell={cell}]')"
        page.evaluate(f"{shown}.textContent = '88.8'")
        assert page.evaluate(f"{shown}.clientHeight") < 40, cell
        assert page.evaluate(f"{shown}.clientWidth") >= 0.15 * (width - 32), cell


def test_the_page_of_a_failure_says_what_the_server_said_and_then_how_its_retry_ends(
    target: Recorder, refused: tuple[Admin, Client], phone: Page
) -> None:
    target.answer = lambda _: (422, b'{"error":\n  "no such tank"}')
    admin, client = refused
    failed(client)
    phone.open(url(admin))
    click(phone, FIRST_PROBLEM, ": no such tank")
    gate = Gate()
    target.answer = gate.before(lambda _: (200, b"{}"))
    click(phone, "form button", "which has not ended")
    assert phone.text("form button") == "Retry once more"
    gate.open.set()
    phone.wait("document.querySelector('main > [role=status] .outcome')?.innerText === 'succeeded'")
    assert phone.fits()


@pytest.mark.parametrize(("status", "is_taken"), [(200, True), (422, False)])
def test_the_page_of_a_failure_says_if_a_retry_repeats_what_the_server_took(
    target: Recorder, status: int, is_taken: bool
) -> None:
    target.answer = lambda _: (status, b"{}")
    route = client_route(target.url, event="WITH PAYLOAD '{response.json.id}'")
    with bridging(embedded_broker.hosting, route) as (_, admin, client):
        assert ("a retry sends it once more" in admin.text(f"/runs/{failed(client)}")) is is_taken
        assert ">Retry 1 with " in admin.text("/routes/Orders")


def test_a_run_that_is_tried_again_has_a_page_that_says_so_until_it_has_ended(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (503, b"")
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        client.publish("orders/1", b"{}")
        eventually(lambda: 'data-outcome="retrying"' in admin.text("/routes/Orders"))
        page = admin.text("/routes/Orders")
        name = page.partition('data-run="')[2].partition('"')[0]
        assert ">Retry " not in page
        assert "another one follows" in admin.text(f"/runs/{name}")
        assert "still being retried" in admin.get(f"/api/runs/{name}").json["error"]["message"]
        target.answer = lambda _: (200, b"")
        client.message()
        eventually(lambda: outcome(admin, name) == "succeeded")
        assert 'data-outcome="retrying"' not in admin.text("/routes/Orders") + admin.text(f"/runs/{name}")


def test_failures_alike_are_sent_again_at_once_and_the_page_says_how_many(
    target: Recorder, page: Page, hosting: Hosting
) -> None:
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        for number in range(5):
            failed(client, f"orders/{number}")
        gate = Gate()
        target.answer = gate.before(lambda seen: (422 if seen.path.endswith("/0") else 200, b"{}"))
        page.open(url(admin))
        page.wait("document.querySelector('[data-problems] .count')?.innerText === '5 ×'")
        question = "Send 5 messages of route Orders that failed with 422 http_status again?"
        assert page.evaluate("document.querySelector('[data-problems] .ask form span').textContent") == question
        click(page, FIRST_PROBLEM, "Retry all 5 with 422 http_status")
        assert not page.evaluate("document.querySelector('.ask form').checkVisibility()"), "it asks first"
        page.evaluate("document.querySelector('.ask summary').click()")
        assert page.text(".ask form span") == question
        assert page.text(".ask form button") == "Send 5 again"
        click(page, ".ask form button", "5 sent again: 5 under way.")
        lines = "[...document.querySelectorAll('.why')].map((line) => line.innerText.split(': ').pop()).join(' ')"
        assert page.evaluate(lines) == "retrying retrying retrying retrying retrying"
        gate.open.set()
        assert len(client.messages(5)) == 5
        page.wait("document.querySelector('main').innerText.includes('5 sent again: 4 succeeded, 1 failed again.')")
        page.wait(f"{lines} === 'succeeded succeeded succeeded succeeded failed'")
        page.evaluate("document.querySelector('.filters select').value = 'failed'")
        click(page, ".filters button", "orders/4")
        assert page.evaluate("document.querySelectorAll('[data-outcome=succeeded]').length") == 0
        assert "sent again as" in page.evaluate("document.querySelector('.runs').textContent")
        status, answer = post(admin, "/retry", b"route=Orders&code=http_status")
        assert (status, answer.partition("&first=")[0]) == (303, "/routes/Orders?started=1&refused=0")
        assert post(admin, "/retry", b"route=Orders")[0] == 400
        assert post(admin, "/retry", b"route=Orders&code=x", Origin="http://evil.example")[0] == 403


def test_open_failures_have_a_page_with_their_reasons_that_sends_all_of_them_again(
    target: Recorder, page: Page, hosting: Hosting
) -> None:
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        for status in (422, 404):
            target.answer = functools.partial(lambda code, _: (code, b"{}"), status)
            failed(client, f"orders/{status}")
        target.answer = lambda _: (200, b"{}")
        page.open(url(admin, "/runs?outcome=open"))
        assert page.text("h1") == "Failures that wait for a retry"
        assert "the server answered 404 Not Found" in page.text(".runs summary")
        page.evaluate("document.querySelector('.ask summary').click()")
        assert page.text(".ask form span") == "Send 2 messages again?"
        click(page, ".ask form button", "2 sent again")
        client.messages(2)
        page.wait("document.querySelector('main').innerText.includes('2 sent again: 2 succeeded.')")
        assert "Retry" not in admin.text("/runs?outcome=open")


def test_a_failure_that_is_not_needed_any_more_is_put_away_on_its_page_and_the_route_is_green(
    target: Recorder, page: Page, hosting: Hosting, tmp_path: Path
) -> None:
    file = str(tmp_path / "failures.db")
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, client):
        page.open(url(admin, f"/runs/{failed(client)}"))
        page.evaluate("document.querySelector('.ask summary').click()")
        click(page, ".ask button", "None that the filters let through.")
        assert (admin.status("Orders")["health"], admin.problems()) == ("Green", [])
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, _):
        assert (admin.status("Orders")["open_failures"], runs(admin)) == (0, [])


def test_the_first_page_begins_with_what_is_wrong_now_and_folds_problems_after_the_fifth(
    target: Recorder, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = client_route(target.url) + client_route(target.url, name="Well").replace("orders/", "well/")
    with bridging(embedded_broker.hosting, routes) as (_, admin, client):
        for status in range(401, 407):
            target.answer = functools.partial(lambda code, _: (code, b"{}"), status)
            failed(client, f"well/{status}")
        target.answer = lambda _: (200, b"{}")
        client.publish("well/1", b"")
        client.message()
        target.answer = lambda _: (500, b"{}")
        failed(client)
        monkeypatch.setattr(problems, "PASSED_SECONDS", 0.0)
        page.open(url(admin))
        titles = page.evaluate(
            "[...document.querySelectorAll('[data-problems] .cause code')].map((one) => one.innerText)"
        )
        assert (titles[0], len(titles)) == ("500 http_status", 7)
        states = page.evaluate("[...document.querySelectorAll('[data-state]')].map((one) => one.dataset.state)")
        assert states == ["open", *["passed"] * 6]
        assert page.text(".resolved") == "The route works again; 1 message waits for a retry."
        heights = page.evaluate("[...document.querySelectorAll('[data-problems] li')].map((one) => one.offsetHeight)")
        assert max(heights[5:]) < 60 < min(heights[:5]), "one line each"


def test_runs_come_before_numbers_zeros_fold_topics_break_and_names_stay_in_their_boxes(
    target: Recorder, page: Page
) -> None:
    topic = "orders/line-seven-of-the-second-hall/temperature"
    routes = client_route(
        target.url, event='WITH ERROR_TOPIC "errors/of/the/second/hall/line/seven/and/others"'
    ).replace('"orders/+"', '"orders/#"') + server_route("Orders-of-the-second-hall-and-all-the-others")
    with bridging(embedded_broker.hosting, routes, "errors/#") as (_, admin, client):
        failed(client, topic, b'{"a": {"b": 1}}')
        page.size(360, 640)
        page.open(url(admin, "/routes/Orders"))
        headings = page.evaluate("[...document.querySelectorAll('h2')].map((one) => one.innerText).join()")
        assert headings == "Runs,Numbers,Definition"
        assert page.text("[data-numbers] dt:last-of-type") == "Connection"
        folded = page.evaluate("document.querySelector('.zeros').innerText + document.querySelector('.zeros').open")
        assert folded == "Numbers that are zerofalse"
        assert page.evaluate("document.querySelector('.runs .what').innerHTML").count("/<wbr>") == 2
        target.answer = lambda _: (200, b"{}")
        client.publish("orders/2", b"{}")
        page.wait("document.querySelector('[data-numbers] [data-cell=succeeded]')?.innerText === '1'")
        page.size(1280, 800)
        page.open(url(admin, "/flow"))
        assert page.evaluate("document.querySelectorAll('.drawing .box').length") > 5
        for name in ("text", "[data-rate]"):
            outside = f"""[...document.querySelectorAll('.drawing .box')].filter((box) => {{
                const [text, own] = [box.querySelector({name!r})?.getBBox(), box.querySelector('rect').getBBox()];
                return text?.width && (text.x < own.x || text.x + text.width > own.x + own.width);
            }}).map((box) => box.textContent)"""
            assert page.evaluate(outside) == []


def test_problems_do_not_move_below_a_link_that_is_about_to_be_used(
    target: Recorder, refused: tuple[Admin, Client], page: Page
) -> None:
    admin, client = refused
    page.open(url(admin))
    failed(client)
    page.wait("document.querySelectorAll('[data-problems] li').length === 1")
    page.evaluate(f"link = document.querySelector('{FIRST_PROBLEM}'); link.focus()")
    target.answer = lambda _: (503, b"")
    for _ in range(3):
        failed(client)
    page.wait("document.querySelector('[data-cell=failed]').innerText === '4'")
    assert page.evaluate("document.querySelectorAll('[data-problems] li').length") == 1
    assert page.evaluate("document.activeElement === link")
    page.evaluate("link.blur()")
    page.wait("document.querySelectorAll('[data-problems] li').length === 2")


def test_the_slash_key_searches_routes_and_opens_the_groups_that_have_them(page: Page) -> None:
    names = [f"Gate{number}" for number in range(30)] + [f"Lamp{number}" for number in range(15)]
    routes = "".join(server_route(name).replace("/hook", f"/{name}") for name in names)
    with bridging(embedded_broker.hosting, routes) as (_, admin, _):
        page.open(url(admin))
        shown = "[...document.querySelectorAll('[data-route]')].filter((row) => row.checkVisibility()).length"
        assert page.evaluate(shown) == 0, "all are folded"
        for key in "/lamp1":
            page.press(key)
        page.wait(f"{shown} === 6")
        assert page.evaluate("document.activeElement.value") == "lamp1"
        page.press("Enter")
        page.wait(f"location.search === '?q=lamp1' && document.readyState === 'complete' && {shown} === 6")
        page.wait("document.querySelector('[data-live]').textContent === 'live'")
        page.wait("document.querySelector('[data-summary]').innerText === '45 routes: 45 Green'")


def test_without_routes_the_page_shows_the_folder_a_first_route_and_the_library(tmp_path: Path) -> None:
    host = Host(configuration(tmp_path, admin_port=0))
    try:
        page = html.unescape(admin_of(host).get("/").text)
        for part in (str(tmp_path), "DEFINE ROUTE First WITH TYPE REST_API", 'href="http://127.0.0.1:8000/"'):
            assert part in page
        (tmp_path / "first.lot").write_text(page.partition('id="first">')[2].partition("<")[0])
        assert [route.name for route in load_routes(tmp_path).routes] == ["First"]
    finally:
        host.stop()


def test_what_a_publisher_wrote_is_text_on_the_page_of_its_run(target: Recorder, hosting: Hosting) -> None:
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        tree = json.dumps({HOSTILE: {HOSTILE: [HOSTILE]}}).encode()
        for payload, trees in ((HOSTILE.encode(), 0), (tree, 2)):
            name = failed(client, payload=payload)
            page = admin.text(f"/runs/{name}")
            assert "<img" not in page
            assert (page.count("<script"), page.count('class="json"')) == (2, trees)
        forged = asking.ask(admin.port, f"/runs/{name}%0d%0aX-Evil:1/retry", b"", Authorization=f"Bearer {TOKEN}")
        assert "X-Evil" not in forged.headers


def test_every_kind_of_run_has_a_page(target: Recorder, hosting: Hosting) -> None:
    conditional = client_route(target.url, event="WITH WHEN '{value.json.level} >= 3'")
    with bridging(hosting, conditional + server_route(), max_message_bytes=100) as (host, admin, client):
        for payload in (b'{"level": 1}', b'{"level": 3}', bytes(101)):
            client.publish("orders/7", payload)
        client.messages(2)
        target.answer = lambda _: (200, b"{}")
        client.publish("orders/7", b'{"level": 4}')
        client.message()
        for path in ("/hook", "/nowhere"):
            asking.ask(host.http_port, path, b"{}")
        found = runs(admin)
        outcomes = ["succeeded", "succeeded", "failed", "refused", "skipped"]
        assert sorted(run["outcome"] for run in found) == sorted(outcomes)
        for run in found:
            page = admin.text(f"/runs/{run['id']}")
            assert f'data-outcome="{run["outcome"]}"' in page
            tree = '<span class="name">&#34;level&#34;:</span> <span class="number">'
            assert (tree in page) == (run["topic"] == "orders/7" and run["code"] == "http_status"), run


def test_a_resolved_problem_is_calm(refused: tuple[Admin, Client], target: Recorder, page: Page) -> None:
    admin, client = refused
    client.publish("orders/1", b"{}")
    name = json.loads(client.message()[1])["id"]
    colours = "[...document.querySelectorAll('.cause, .cause code')].map((one) => getComputedStyle(one).color)"
    page.open(url(admin))
    of_text, of_code = page.evaluate(colours)
    assert of_code != of_text
    target.answer = lambda _: (200, b"{}")
    assert post(admin, f"/api/runs/{name}/retry")[0] == 202
    page.wait("document.querySelector('[data-state=resolved]')")
    assert page.evaluate(colours) == [of_text, of_text]


def test_the_page_of_a_run_from_before_a_restart_counts_the_tries_since(target: Recorder, tmp_path: Path) -> None:
    target.answer = lambda _: (503, b"")
    routes, spool = client_route(target.url, more=LOSSLESS), str(tmp_path / "spool.db")
    with bridging(embedded_broker.hosting, routes, spool=spool) as (_, _, client):
        client.publish("orders/1", b"{}")
        target.request()
    target.answer = lambda _: (200, b"{}")
    with bridging(embedded_broker.hosting, routes, spool=spool) as (_, admin, _):
        eventually(lambda: runs(admin))
        assert "1 try since the restart within" in admin.text(f"/runs/{runs(admin)[0]['id']}")
        assert "1 try since the restart" in admin.text("/runs")
