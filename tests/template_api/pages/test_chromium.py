"""The library's pages in a real browser: typing, filters, copying; by keyboard, without JavaScript, narrow, dark.

AXE_CORE names the file axe.min.js of axe-core (npm), by which `.ci/run` has the accessibility checked.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from template_api.library import import_templates
from tests.support.browser import Page
from tests.support.library_store import template
from tests.support.served_api import Served, serving
from tests.template_api.pages.test_pages import HOSTILE, MARKDOWN

LIBRARY = Path(__file__).parents[3] / "conf" / "library"
PLAYGROUND = "/playground?template=github-webhooks"
TEMPLATES = ["github-webhooks", "hostile", "none"]
PATHS = ["/", "/?q=webhook", "/?q=zzzyyyxxx", "/docs", PLAYGROUND, *(f"/templates/{name}" for name in TEMPLATES)]
CARDS = "[...document.querySelectorAll('.card h2 a')].map((link) => link.innerText)"
FOCUSED = "document.activeElement.innerText || document.activeElement.id"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("library")
    cells = [{"language": language, "value": HOSTILE} for language in ("lot", "markdown", "python", HOSTILE)]
    hostile = template(
        "hostile", title=f"Hostile {HOSTILE}", short_description=HOSTILE, content=MARKDOWN, tags=[HOSTILE, "x" * 300],
        category=HOSTILE, published_at="2020-01-01T00:00:00Z", notebooks=[{"filename": "a.lotnb", "cells": cells}],
    )  # fmt: skip
    (folder / "hostile.jsonl").write_text(json.dumps(hostile))
    database = f"sqlite:///{folder / 'library.db'}"
    for source in (LIBRARY, folder / "hostile.jsonl"):
        assert not import_templates(database, source).failed
    with serving(folder, "--database-url", database) as served:
        yield served


def url(api: Served, path: str = "/") -> str:
    return f"http://127.0.0.1:{api.port}{path}"


def type_text(page: Page, text: str) -> None:
    for character in text:
        page.press(character)


def tab_to(page: Page, name: str) -> None:
    """Press Tab until what has this text or id has the focus, and can be seen to have it."""
    for _ in range(60):
        page.press("Tab")
        if name in str(page.evaluate(FOCUSED)):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{name} cannot be reached by Tab")


def test_results_appear_while_typing_without_a_reload(api: Served, page: Page) -> None:
    page.open(url(api))
    page.evaluate("window.mark = 'not reloaded'; document.getElementById('q').focus()")
    type_text(page, "webh")
    page.wait(f"{CARDS}.some((title) => title.toLowerCase().includes('webhook')) && location.search.includes('webh')")
    assert page.evaluate("[document.activeElement.id, window.mark]") == ["q", "not reloaded"]


def test_the_counts_of_filters_follow_what_is_typed(api: Served, page: Page) -> None:
    counts = (
        "[...document.querySelectorAll('#facets .count')].reduce((sum, each) => sum + parseInt(each.textContent), 0)"
    )
    page.open(url(api))
    before = page.evaluate(counts)
    page.evaluate("document.getElementById('q').focus()")
    type_text(page, "lorawan")
    page.wait(f"location.search.includes('lorawan') && {counts} < {before}")
    page.wait(f"{CARDS}.length === parseInt(document.querySelector('[data-count]').innerText)")


def test_a_search_that_cannot_be_run_while_typing_says_why(api: Served, page: Page) -> None:
    page.open(url(api))
    before = page.evaluate(CARDS)
    answer = "new Response('<h1>The search index is being built</h1><p>Try again in a second</p>', {status: 503})"
    page.evaluate(f"window.fetch = async () => {answer}; document.getElementById('q').focus()")
    type_text(page, "x")
    said = "The search index is being built. Try again in a second"
    page.wait(f"document.getElementById('announced').innerText === '{said}'")
    assert page.evaluate(CARDS) == before


def test_a_filter_narrows_the_results_and_stays_while_typing(api: Served, page: Page) -> None:
    page.open(url(api))
    before = len(page.evaluate(CARDS))
    page.evaluate("document.querySelector('[data-facet=Difficulty] summary').click()")
    page.evaluate(
        "[...document.querySelectorAll('#facets a')].find((link) => link.innerText.startsWith('advanced')).click()"
    )
    page.wait("location.search.includes('difficulty=advanced') && document.readyState === 'complete'")
    narrowed = page.evaluate(CARDS)
    assert 0 < len(narrowed) < before
    page.evaluate("document.getElementById('q').focus()")
    type_text(page, "lorawan")
    page.wait(f"{CARDS}.length < {len(narrowed)}")
    assert "difficulty=advanced" in page.evaluate("location.search")
    assert all(
        "advanced" in text for text in page.evaluate("[...document.querySelectorAll('.card')].map((c) => c.innerText)")
    )


def test_the_install_line_and_a_cell_are_copied(api: Served, page: Page) -> None:
    page.open(url(api, "/templates/webhook-intake"))
    page._do("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    for id_ in ("install", "cell-1-2"):
        page.evaluate(f"document.querySelector('[data-copy={id_}]').click()")
        page.wait("document.getElementById('announced').innerText === 'Copied'")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.evaluate(f"document.getElementById('{id_}').textContent")
        page.evaluate("document.getElementById('announced').textContent = ''")
    assert copied.startswith("DEFINE ROUTE")


def test_the_keyboard_alone_searches_opens_a_template_and_copies_its_install_line(api: Served, page: Page) -> None:
    page.open(url(api))
    page.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to content"
    tab_to(page, "q")
    type_text(page, "weather")
    page.press("Enter")
    page.wait("location.search.includes('q=weather') && document.readyState === 'complete'")
    (title, *_) = page.evaluate(CARDS)
    tab_to(page, title)
    page.press("Enter")
    page.wait("location.pathname.startsWith('/templates/') && document.readyState === 'complete'")
    assert page.text("h1") == title
    tab_to(page, "Copy")
    page.press("Enter")
    page.wait("document.getElementById('announced').innerText === 'Copied'")


def test_docs_try_an_operation_and_write_its_curl_line(api: Served, page: Page) -> None:
    page.open(url(api, "/docs"))
    form = "document.querySelector('[data-try=GET][data-path=\"/api/search\"]')"
    page.evaluate(f"{form}.elements.q.value = \"recieve it's\"; {form}.elements.limit.value = '1'")
    page.evaluate(f"{form}.dispatchEvent(new Event('input')); {form}.requestSubmit()")
    page.wait(f"{form}.querySelector('[data-answer] p').innerText.startsWith('200 OK, ')")
    assert len(json.loads(page.evaluate(f"{form}.querySelector('[data-answer] code').textContent"))["results"]) == 1
    assert page.evaluate(f"{form}.querySelector('[data-curl]').textContent") == (
        f"curl 'http://127.0.0.1:{api.port}/api/search?q=recieve+it%27s&limit=1'"
    )
    post = "document.querySelector('[data-try=POST]')"
    page.evaluate(f"{post}.querySelector('[data-body]').value = '{{\"query\": 7}}'; {post}.requestSubmit()")
    page.wait(f"{post}.querySelector('[data-answer] p').innerText.startsWith('400 Bad Request, ')")
    assert "query must be" in page.evaluate(f"{post}.querySelector('[data-answer] code').textContent")
    assert page.errors == []


def test_keys_lead_to_the_search_and_through_the_results(api: Served, page: Page) -> None:
    page.open(url(api, "/?q=webhook"))
    page.press("/")
    assert page.evaluate("[document.activeElement.id, document.activeElement.value]") == ["q", "webhook"]
    titles = page.evaluate(CARDS)
    for key, focused in (("ArrowDown", titles[0]), ("ArrowDown", titles[1]), ("ArrowUp", titles[0]), ("ArrowUp", "q")):
        page.press(key)
        assert page.evaluate(FOCUSED) == focused


def test_filters_are_a_sheet_on_phones_and_a_column_elsewhere_without_javascript(api: Served, page: Page) -> None:
    shown = "getComputedStyle(document.getElementById('facets')).display !== 'none'"
    page.disable_scripts()
    page.size(360, 640)
    page.open(url(api))
    assert not page.evaluate(shown)
    tab_to(page, "Filters")
    page.press("Enter")
    assert page.evaluate(shown)
    assert page.fits()
    page.size(1280, 800)
    page.open(url(api))
    assert page.evaluate(shown)


def test_everything_can_be_read_and_searched_without_javascript(api: Served, page: Page) -> None:
    page.disable_scripts()
    page.open(url(api))
    page.evaluate("document.getElementById('q').focus()")
    type_text(page, "webhook")
    page.press("Enter")
    page.wait("location.search.includes('q=webhook') && document.readyState === 'complete'")
    assert "webhook" in page.text(".card").lower()
    page.open(url(api, "/templates/webhook-intake"))
    assert page.text("#install").startswith("rest-bridge install webhook-intake --from ")
    assert page.evaluate("getComputedStyle(document.querySelector('.copy')).display") == "none"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_wider_than_360_pixels_in_light_and_dark_nor_a_barrier(api: Served, page: Page, path: str) -> None:
    page.size(360, 640)
    page.open(url(api, path))
    for scheme in ("light", "dark"):
        page.colours(scheme)
        assert page.fits()
        assert page.is_dark() is (scheme == "dark")
    if "AXE_CORE" in os.environ:
        page.size(1280, 800)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true }); announce('Copied')")
        assert page.barriers() == []


def test_hostile_texts_run_nothing_and_break_nothing_rendered_or_found_while_typing(api: Served, page: Page) -> None:
    for path in ("/templates/hostile", "/?q=hostile"):
        page.open(url(api, path))
        assert page.evaluate("[document.images.length, document.scripts.length]") == [0, 2]
        assert HOSTILE in page.text("h1" if path.startswith("/t") else ".card h2")
    page.evaluate("document.getElementById('q').focus(); document.getElementById('q').select()")
    type_text(page, "hosti")
    page.wait("location.search.endsWith('q=hosti')")
    assert page.text(".card h2") == f"Hostile {HOSTILE}"
    assert page.evaluate("document.images.length") == 0
    assert not page.evaluate("document.title").startswith("hacked")
    assert page.errors == []


def test_a_template_opens_in_the_playground_which_shows_what_it_does(api: Served, page: Page) -> None:
    page.size(360, 640)
    page.open(url(api, "/templates/github-webhooks"))
    page.evaluate("[...document.querySelectorAll('a.button')].find((link) => /playground/.test(link.href)).click()")
    page.wait("document.title.startsWith('Playground') && document.readyState === 'complete'")
    assert page.evaluate("document.getElementById('definition').value").startswith("DEFINE ROUTE")
    page.size(1280, 900)
    bottom = page.evaluate("document.querySelector('[data-playground] button').getBoundingClientRect().bottom")
    assert bottom <= 900, "the button is seen without scrolling"
    page.size(360, 640)
    page.evaluate("document.forms[0].submit()")
    page.wait("document.querySelector('.ways') !== null && document.readyState === 'complete'")
    assert page.fits()
    assert "is published on" in page.text("#result")
    assert page.errors == []
