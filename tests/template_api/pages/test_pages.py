"""The library's pages as HTML: what they show and never show, their links; what authors write can do nothing."""

import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import falcon.testing
import pytest

from template_api.errors import DatabaseUnavailableError
from template_api.pages.markup import highlighted, rendered
from template_api.query import description, resolved
from tests.support.library_store import Client, Store, template

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">'\"&</script><script>document.title='hacked'</script>{{7*7}}"
LINKS = "[a](javascript:alert(1)) ![b](https://evil.example/x.png) [c](data:text/html,x)"
MARKDOWN = f"{HOSTILE}\n\n{LINKS}\n\n```lot\n{HOSTILE}\n```\n"
LOT = "DEFINE ROUTE R WITH TYPE REST_API // note\n  ADD EVENT E WITH SOURCE_TOPIC \"a/{topic.2}\" WITH RETRIES '3'\n"
FILES = ("site.css", "site.js", "library.js", "docs.js", "icon.svg")
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Parsed(HTMLParser):
    """The elements of a page, its text, and whether every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self) -> list[str]:
        return [attributes["href"] for attributes in self.all("a")]


def parsed(result: falcon.testing.Result) -> Parsed:
    assert (result.status_code, result.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return Parsed(result.text)


def titles(page: Parsed) -> list[str]:
    return [link.rpartition("/")[2] for link in page.links() if link.startswith("/templates/")]


@pytest.fixture(scope="module")
def library(shared_sqlite_store: Store) -> Client:
    """A library of the tests that only read it."""
    return filled(shared_sqlite_store)


def filled(store: Store) -> Client:
    store.bring(
        template("first", title="Weather report", tags=["rain", "sun"], category="Outdoors", difficulty="beginner"),
        template("second", title="Webhook intake", tags=["sun"], category="Indoors", content="# Head\n\n**bold**"),
        template("third", title="Weather alarm", tags=["rain"], notebooks=[{"filename": "a.lotnb", "cells": cells()}]),
        template("secret", title="Weather draft", tags=["unseen"], category="Unseen", status="draft"),
        template("gone", title="Weather hidden", tags=["unseen"], category="Unseen", status="hidden"),
    )
    return store.client()


def cells() -> list[dict[str, Any]]:
    return [
        {"kind": 1, "language": "markdown", "value": "# Note\n\ntext"},
        {"kind": 2, "language": "lot", "value": LOT},
        {"kind": 2, "language": "cobol", "value": "STOP <RUN>"},
        {"value": ["a", "b", 7]},
        {"language": 9, "value": {"x": "<b>"}},
        {},
    ]


def test_the_library_page_lists_what_is_published_and_nothing_else(library: Client) -> None:
    page = parsed(library.page("/"))
    assert sorted(titles(page)) == ["first", "second", "third"]
    assert "3 templates" in page.text
    for word in ("draft", "hidden", "unseen", "Unseen"):
        assert word not in page.text.replace("hidden ", "")
    for slug in ("secret", "gone", "never"):
        answer = library.page(f"/templates/{slug}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "Weather" not in answer.text
    assert set(titles(parsed(library.page("/", params={"q": "weather draft hidden"})))) == {"first", "third"}


def test_a_search_shows_the_best_first_and_names_what_it_corrected(library: Client) -> None:
    page = parsed(library.page("/", params={"q": "wether"}))
    assert set(titles(page)) == {"first", "third"}
    assert "Searched weather for “wether”." in page.text
    assert [each["value"] for each in page.all("input") if each["name"] == "q"] == ["wether"]


def test_a_search_names_what_it_did_not_find_and_leads_to_the_words_as_typed(library: Client) -> None:
    page = parsed(library.page("/?q=wether+qqqqqq"))
    assert "Searched weather for “wether”; not found: “qqqqqq”." in page.text
    [as_typed] = [link for link in page.links() if "exact=true" in link]
    exact = parsed(library.page(as_typed))
    assert "Nothing found for “wether”, “qqqqqq”." in exact.text
    assert "0 templates" not in exact.text
    assert "Not found" not in exact.text
    assert sorted(titles(exact)) == ["first", "third"], "what is near"
    hostile = parsed(library.page("/?q=" + "%3Cscript%3Eqqq%22+wether"))
    assert "<" not in hostile.text.partition("ot found")[2].partition("\n")[0]


def test_links_of_facets_filter_without_a_search_too(library: Client) -> None:
    text = library.page("/").text
    found = re.findall(r'<a href="/(\?[^"]*)">([\w ]+) <span', text)
    links = {name: "/" + link.replace("&amp;", "&") for link, name in found}
    assert sorted(titles(parsed(library.page(links["rain"])))) == ["first", "third"]
    assert titles(parsed(library.page(links["Outdoors"]))) == ["first"]
    chosen = library.page(links["beginner"])
    assert titles(parsed(chosen)) == ["first"]
    remove = '<a href="/?" aria-current="true"><span class="hidden">Remove filter </span>beginner'
    assert remove in chosen.text
    assert {each["name"]: each["value"] for each in parsed(chosen).all("input")}["difficulty"] == "beginner"


def test_counts_of_facets_are_of_the_present_search_and_of_the_other_filters(library: Client) -> None:
    def counts(**query: str) -> dict[str, int]:
        found = re.findall(r'>([\w ]+) <span class="count">(\d+)', library.page("/", params=query).text)
        return {name: int(count) for name, count in found}

    tags = {each["name"]: each["id"] for each in library.get("/api/facets").json["tags"]}
    assert counts() == {"REST_API": 1, "rain": 2, "sun": 2, "Outdoors": 1, "Indoors": 1, "beginner": 1}
    assert counts(q="weather") == {"REST_API": 1, "rain": 2, "sun": 1, "Outdoors": 1, "beginner": 1}
    assert counts(q="wether") == counts(q="weather")
    assert counts(difficulty="beginner") == {"rain": 1, "sun": 1, "Outdoors": 1, "beginner": 1}
    either = counts(tag_ids=tags["rain"])  # a second tag would do too
    assert either == {"REST_API": 1, "rain": 2, "sun": 2, "Outdoors": 1, "beginner": 1}
    assert counts(q="webhook", difficulty="beginner") == {"beginner": 0}  # chosen: it can be taken out again
    assert counts(q="zzzyyyxxx") == {}


def test_the_count_of_a_facet_is_that_of_the_page_it_leads_to(library: Client) -> None:
    for query in ({}, {"q": "weather"}, {"q": "weather", "difficulty": "beginner"}, {"q": "intake"}):
        text = library.page("/", params=query).text
        links = re.findall(r'<li><a href="/(\?[^"]*)">[\w ]+ <span class="count">(\d+)', text)
        for link, count in links:
            assert len(titles(parsed(library.page("/" + link.replace("&amp;", "&"))))) == int(count)
        assert links or query == {"q": "weather", "difficulty": "beginner"}


@pytest.mark.parametrize("searched", ["", "weather"])
def test_the_next_page_repeats_nothing_whatever_is_published_meanwhile(sqlite_store: Store, searched: str) -> None:
    sqlite_store.bring(*(template(f"t{number}", title=f"Weather {number}") for number in range(25)))
    client = sqlite_store.client()
    first = parsed(client.page("/", params={"q": searched} if searched else {}))
    assert "1 to 20 of 25 templates" in first.text
    (following,) = (each["href"] for each in first.all("a") if each.get("rel") == "next")
    sqlite_store.bring(*(template(f"new{number}", title="Weather") for number in range(3)))
    second = parsed(client.page(following))
    assert len(titles(first)) == 20
    assert not set(titles(first)) & set(titles(second))
    assert {f"t{number}" for number in range(25)} <= {*titles(first), *titles(second)}
    (begin,) = (each["href"] for each in second.all("a") if each.get("rel") == "first")
    assert set(titles(parsed(client.page(begin)))) >= {"new0", "new1", "new2"}


def test_the_words_found_are_marked_in_title_description_and_content(sqlite_store: Store) -> None:
    sqlite_store.bring(
        template("one", title="A webhook & more", short_description="Webhooks <b>", content="Text. A webhook here.")
    )
    text = sqlite_store.client().page("/?q=webhok").text
    for part in ("A <mark>webhook</mark> &amp; more", "<mark>Webhooks</mark> &lt;b&gt;", "<mark>webhook</mark> here."):
        assert part in text
    assert "<mark>" not in sqlite_store.client().page("/").text


def test_an_excerpt_shows_no_signs_of_markdown(sqlite_store: Store) -> None:
    headings = "## Barometer ##\n# In C#\n### Ready?\n\n"
    content = f"{headings}| a | `b_c` |\n|---|---|\n\n- a **steel** [barometer](http://x.t) for my_topic, `a/+/#`"
    sqlite_store.bring(template("one", content=content))
    page = Parsed(sqlite_store.client().page("/?q=barometer").text)
    assert "Barometer. In C#. Ready? a b_c a steel barometer for my_topic, a/+/#" in " ".join(page.text.split())


def test_a_search_for_zero_keeps_its_text_in_links(sqlite_store: Store) -> None:
    sqlite_store.bring(*(template(f"t{number}", title="Room 0") for number in range(21)))
    page = parsed(sqlite_store.client().page("/?q=0&sort=title"))
    (following,) = (each["href"] for each in page.all("a") if each.get("rel") == "next")
    assert "q=0" in following
    assert {"sort": "title"}.items() <= {each["name"]: each["value"] for each in page.all("input")}.items()


def test_a_template_is_shown_with_its_install_line_text_and_cells(library: Client) -> None:
    result = library.page("/templates/third")
    page = parsed(result)
    assert "rest-bridge install third --from http://127.0.0.1:8000" in page.text
    assert "Where rest-bridge is not in the PATH, use .venv/bin/rest-bridge." in page.text
    assert '<h2 id="notebook-1">a.lotnb <span class="note">version 1</span></h2>' in result.text
    assert "<h3>Note</h3>" in result.text
    assert '<span class="na">SOURCE_TOPIC</span>' in result.text
    assert LOT in page.text
    assert "STOP <RUN>" in page.text
    assert '"x": "<b>"' in page.text
    assert "<h2>Head</h2>\n<p><strong>bold</strong></p>" in library.page("/templates/second").text
    assert "/api/templates/third" in page.links()
    identity = library.read("third")["id"]
    assert library.page(f"/templates/{identity}").text == result.text


def test_what_authors_write_is_text_everywhere(sqlite_store: Store) -> None:
    hostile = [{"language": language, "value": HOSTILE} for language in ("lot", "markdown", "python", "json", HOSTILE)]
    sqlite_store.bring(
        template(
            "one", title=HOSTILE, short_description=HOSTILE, content=MARKDOWN, tags=[HOSTILE], category=HOSTILE,
            broker_version=HOSTILE, routes=[HOSTILE],
            notebooks=[{"filename": f"{HOSTILE}.lotnb".replace("/", ""), "role": HOSTILE, "cells": hostile}],
        )
    )  # fmt: skip
    client = sqlite_store.client()
    for path in (
        "/",
        "/templates/one",
        "/?q=%3Cscript%3E%22",
        "/?difficulty=%3Cscript%3E",
        "/templates/%3Cscript%3E",
    ):
        result = client.page(path)
        page = Parsed(result.text)
        assert len(page.all("script")) == 2
        assert not {"img", "iframe", "object", "style", "svg", "base"} & {tag for tag, _ in page.elements}
        assert not [
            name for _, attributes in page.elements for name in attributes if name.startswith("on") or name == "style"
        ]
        assert all(urlsplit(link).scheme in ("", "http", "https", "mailto") for link in page.links())
    assert page.all("script") == [{"src": f"/static/{name}.js", "defer": ""} for name in ("site", "library")]
    assert HOSTILE in Parsed(client.page("/templates/one").text).text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        pytest.param("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>", id="raw HTML is text"),
        pytest.param("[x](JavaScript:alert)", "<p>[x](JavaScript:alert)</p>", id="no script link"),
        pytest.param("[x](java&#10;script:alert)", None, id="no hidden script link"),
        pytest.param("<vbscript:x>", None, id="no script autolink"),
        pytest.param("[x](//evil.example)", "<p>[x](//evil.example)</p>", id="no link without a scheme"),
        pytest.param(
            "[x](https://a.example 'T')",
            '<p><a href="https://a.example" title="T" rel="noopener noreferrer nofollow">x</a></p>',
            id="web link",
        ),
        pytest.param(
            '![a "b](https://a.example/i.png)',
            '<p><a href="https://a.example/i.png" rel="noopener noreferrer nofollow">a &quot;b</a></p>',
            id="an image is a link",
        ),
        pytest.param("# A\n###### B", "<h2>A</h2>\n<h6>B</h6>", id="headings are below that of the page"),
    ],
)
def test_markdown_can_do_nothing(text: str, html: str | None) -> None:
    made = str(rendered(text, below=1)).strip()
    if html is not None:
        assert made == html
    assert not [link for link in Parsed(made).links() if urlsplit(link).scheme not in ("https", "")]


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "*a **b " * 5_000, "> " * 3_000 + "x", "`" * 20_001, "|a" * 5_000 + "\n" + "|-" * 5_000]
)
def test_no_markdown_takes_long_and_a_text_that_is_too_long_is_shown_as_it_is(text: str) -> None:
    assert rendered(text, below=1)
    assert rendered("*a* <b>" * 100_000, below=1).startswith("<pre>*a* &lt;b&gt;")
    assert highlighted('"a" ' * 100_000, "lot").startswith("&#34;a&#34; ")


def test_the_route_language_is_highlighted() -> None:
    code = str(highlighted(LOT, "LOT"))
    for part in (
        '<span class="k">DEFINE</span>', '<span class="c1">// note</span>', '<span class="na">SOURCE_TOPIC</span>',
        '<span class="si">{topic.2}</span>',
    ):  # fmt: skip
        assert part in code
    assert Parsed(f"<pre>{code}</pre>").text == LOT


@pytest.mark.parametrize(
    "path",
    ["/", "/templates/second", "/docs", *(f"/static/{file}" for file in FILES)],
)
def test_pages_are_sent_as_other_answers_are(library: Client, path: str) -> None:
    whole = library.page(path)
    assert whole.status_code == 200
    assert library.page(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    small = library.page(path, headers={"Accept-Encoding": "gzip"})
    content = gzip.decompress(small.content) if small.headers.get("content-encoding") == "gzip" else small.content
    assert content == whole.content
    head = library._client.simulate_head(path)
    assert (head.status_code, head.headers["etag"], head.content) == (200, whole.headers["etag"], b"")
    policy = whole.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"""(?:src=|url\(|@import )["']?(?:https?:)?//""", whole.text)


def test_errors_of_pages_are_pages(library: Client) -> None:
    for path, status, said in (
        ("/?difficulty=extreme", 400, "difficulty must be one of beginner, intermediate, advanced"),
        ("/?q=%FF", 400, "q is not valid UTF-8"),
        ("/templates/nothing", 404, "There is no published template here"),
    ):
        result = library.page(path)
        assert result.status_code == status
        assert said in Parsed(result.text).text
        assert result.headers["content-security-policy"].startswith("default-src 'none'")
    posted = library._client.simulate_post("/templates/first")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert library.page("/static/../app.py").status_code == 404
    assert library.page("/static/base.html").status_code == 404


def test_docs_name_every_operation_with_its_parameters_a_curl_line_and_an_example_answer(library: Client) -> None:
    text = library.page("/docs").text
    page = parsed(library.page("/docs"))
    for path, methods in description()["paths"].items():
        for method, operation in methods.items():
            (shown,) = operation["responses"]["200"]["content"].values()
            example = shown["example"]
            named = [f"{method.upper()} {path}", operation["summary"]]
            named += [each["name"] for each in resolved(operation.get("parameters", []))]
            named.append(example if isinstance(example, str) else json.dumps(example, indent=2))
            assert [each for each in named if each not in page.text] == []
            for attribute in (f'id="{operation["operationId"]}"', f'href="#{operation["operationId"]}"'):
                assert attribute in text
    schemas = description()["components"]["schemas"]
    assert "$ref" not in page.text
    for name in (*schemas["SearchBody"]["properties"], *schemas["Filters"]["properties"]):
        assert f'"{name}": {{' in page.text
    for line in (
        "curl 'http://127.0.0.1:8000/api/search?q=weather+polliing'",
        "curl http://127.0.0.1:8000/api/templates/weather-on-request",
        "curl http://127.0.0.1:8000/api/search -H 'Content-Type: application/json' -d '{\n  \"query\": \"weather",
    ):
        assert line in page.text


def test_a_library_without_a_playground_neither_serves_nor_names_it(sqlite_store: Store) -> None:
    sqlite_store.bring(template("one"))
    for playground in (True, False):
        client = sqlite_store.client(playground=playground)
        named = {"/playground" in client.page(path).text for path in ("/", "/docs", "/templates/one")}
        assert named == {playground}
        page = client.page("/playground")
        assert (page.status_code, "DEFINE ROUTE First" in page.text) == ((200, True) if playground else (404, False))
        assert client._client.simulate_post("/playground").status_code == (200 if playground else 404)


def test_links_of_pages_begin_with_the_path_of_the_base_url(sqlite_store: Store) -> None:
    sqlite_store.bring(template("one"))
    client = sqlite_store.client(base_url="https://example.org/library/")
    for path in ("/", "/templates/one", "/docs"):
        page = parsed(client.page(path))
        local = [
            *page.links(),
            *(each["href"] for each in page.all("link")),
            *(each["src"] for each in page.all("script")),
        ]
        assert all(link.startswith(("/library/", "#")) for link in local)
    assert "rest-bridge install one --from https://example.org/library" in client.page("/templates/one").text


def test_while_the_index_is_built_the_list_is_shown_and_a_search_says_when_to_try_again(sqlite_store: Store) -> None:
    filled(sqlite_store)
    with sqlite_store.without_index() as building:
        listed = building.page("/")
        assert sorted(titles(parsed(listed))) == ["first", "second", "third"]
        assert "data-facet" not in listed.text
        searched = building.page("/", params={"q": "weather"})
    assert (searched.status_code, searched.headers["Retry-After"]) == (503, "1")
    assert searched.headers["Content-Type"] == "text/html; charset=utf-8"
    page = Parsed(searched.text)
    assert "The search index is being built" in page.text
    assert "Try again in a second; lists and single templates are answered meanwhile." in page.text
    assert "/" in page.links()
    building.library.refresh()
    assert building.page("/", params={"q": "weather"}).status_code == 200  # neither answer was kept
    assert "data-facet" in building.page("/").text


def test_while_the_database_is_away_the_pages_say_so_and_nothing_of_the_inside(
    library: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise DatabaseUnavailableError("cannot reach postgresql://user@10.0.0.7/library")

    monkeypatch.setattr(library.library, "refresh", lambda: None)
    monkeypatch.setattr(library.library, "current", away)
    for path, told in (
        ("/", "The search could not be run"),
        ("/?q=weather", "The search could not be run"),
        ("/templates/first", "The template could not be loaded"),
    ):
        found = library.page(path)
        assert (found.status_code, found.headers["Content-Type"]) == (500, "text/html; charset=utf-8")
        page = Parsed(found.text)
        assert told in page.text
        assert "Try again later" in page.text
        assert "10.0.0.7" not in found.text
    assert library.page("/docs").status_code == 200


def test_cells_beyond_half_a_million_characters_of_a_page_are_shown_as_they_are(sqlite_store: Store) -> None:
    value = "*a* " + "plain " * 32_660
    several = [{"language": "markdown", "value": value}] * 3 + [{"language": "lot", "value": LOT}]
    notebooks = [{"filename": f"{number}.lotnb", "cells": several} for number in range(2)]
    sqlite_store.bring(template("long", notebooks=notebooks))
    shown = sqlite_store.client().page("/templates/long").text
    assert shown.count("<em>") == 2
    assert shown.count('<span class="k">DEFINE</span>') == 0
    assert shown.count(value) == 4


def test_tags_category_and_difficulty_are_links_to_what_has_them(library: Client) -> None:
    for path in ("/?q=report", "/templates/first"):
        page = parsed(library.page(path.partition("?")[0], query_string=path.partition("?")[2]))
        chosen = [link for link in page.links() if link.startswith("/?tag_ids=") and "q=" not in link]
        assert len(chosen) == 2
        assert titles(parsed(library.page("/", query_string=chosen[0].partition("?")[2])))
        assert "/?difficulty=beginner" in page.links()
        assert any(link.startswith("/?category_id=") for link in page.links())


def test_an_empty_result_names_what_is_near_and_leads_out_of_its_filters(library: Client) -> None:
    page = parsed(library.page("/", query_string="q=webcook&exact=true"))
    assert titles(page)[:1] == ["second"]
    assert "Near to it" in page.text
    page = parsed(library.page("/", query_string="q=intake&difficulty=beginner"))
    assert "/?q=intake" in page.links()
    assert "Near to it" not in parsed(library.page("/", query_string="q=weather")).text
    page = parsed(library.page("/", query_string="q=zzzzqqq"))
    assert "Show all templates" in page.text
    assert "without filters" not in page.text
