"""Each page of the documents is short, is rendered as it is meant, and its links lead somewhere."""

import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from tests.documents.flow import FILE, svg
from tests.support.documents import FENCED, PAGES, RECIPES, REFERENCE, ROOT, anchors, blocks, links, page, section
from tests.support.route_text import messages

INDEX = page("amqtt_rest_bridge/README.md")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    text = page(name)
    for path, anchor in links(text):
        linked = (ROOT / name).parent / path if path else ROOT / name
        assert linked.exists(), path
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), (path, anchor)


@pytest.mark.parametrize("name", [name for name in PAGES if "/" in name and len(page(name).split()) >= 800])
def test_a_long_page_opens_with_a_paragraph_and_a_table_of_contents(name: str) -> None:
    text = page(name)
    opening, contents, _ = text.partition("\nContents: ")
    assert contents
    assert 1 <= len(opening.partition("\n")[2].strip().splitlines()) < 15
    listed = {anchor for path, anchor in links(section(text.replace("Contents:", "## Contents\n", 1), "Contents"))}
    assert listed == anchors("\n".join(line for line in text.splitlines() if line.startswith(("## ", "```"))))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_no_longer_than_its_readers_have_time_for(name: str) -> None:
    """The first page is a tutorial, the changes are what a user must know."""
    assert len(page(name).split()) <= {"README.md": 1000, "CHANGELOG.md": 400}.get(name, 4500)


def test_the_index_names_every_page_of_the_reference() -> None:
    listed = {path for path, _ in links(section(INDEX, "Pages")) if path and not path.startswith("../")}
    assert {f"amqtt_rest_bridge/{path}" for path in listed} == {*REFERENCE} - {"amqtt_rest_bridge/README.md"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_task_a_route_and_its_test(name: str) -> None:
    assert re.fullmatch(r"# .+\n\n[^\n#`].+\n\n```lot\n[^`]+```\n\n```yaml\n[^`]*tests:\n[^`]+```\n", page(name))
    listed = {path for path, _ in links(section(page("conf/README.md"), "Recipes"))}
    assert name.removeprefix("conf/") in listed


@pytest.mark.parametrize("settings", blocks(page("amqtt_rest_bridge/lot/SHAPING.md"), "lot"))
def test_the_settings_that_a_page_shows_load_without_a_warning(settings: str) -> None:
    server = 'ENABLE_SERVER "true" WITH SERVER_PORT 8080', 'WITH DESTINATION_TOPIC "out"'
    client = 'BASE_ADDRESS "https://api.test" WITH ENABLE_CLIENT "true"', 'WITH SOURCE_TOPIC "in/+"'
    config, event = server if "{header." in settings else client
    route = f"DEFINE ROUTE R WITH TYPE REST_API\n    ADD REST_API_CONFIG WITH {config}"
    assert messages(f'{route}\n    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/" {event}\n{settings}') == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_how_it_is_and_not_who_decided_it(name: str) -> None:
    assert not re.search(r"\bDecision:|^#+ (.*silent|Decisions)", page(name), re.MULTILINE)


def test_the_drawing_of_the_first_page_is_what_the_product_draws() -> None:
    assert FILE.read_text(encoding="utf-8") == svg(), "python -m tests.documents.flow writes it"
    assert ElementTree.parse(FILE).getroot().tag.endswith("svg")
    assert f"]({FILE.relative_to(ROOT)})" in page("README.md").partition("\n## ")[0]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_rendered_with_all_its_tables(name: str) -> None:
    """A line that begins like an item of a list, or a table without an empty line before it, is not what was meant."""
    text = FENCED.sub("", page(name))
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    rules = re.findall(r"^(?:\| ?-+ ?)+\|$", text, re.MULTILINE)
    assert sum(token.type == "table_open" for token in tokens) == len(rules)
    assert [token.content for token in tokens if token.type == "inline" and token.content.startswith("|")] == []
    assert re.findall(r"^[^\s|#\d-][^\n]*\n(\d+\. .*)", text, re.MULTILINE) == []
