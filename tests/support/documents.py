"""The documents of the repository, read by the tests that compare them with the code or run what they show."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("amqtt_rest_bridge", "template_api", "conf", "tests")
PAGES: Final = tuple(
    file.relative_to(ROOT).as_posix()
    for folder in ("", *FOLDERS)
    for file in sorted((ROOT / folder).glob("**/*.md" if folder else "*.md"))
    if not file.is_relative_to(ROOT / "conf/library")
)
"""The documents; those of the sample library are part of its templates."""
RECIPES: Final = tuple(name for name in PAGES if name.startswith("conf/recipes/"))
REFERENCE: Final = tuple(name for name in PAGES if name.startswith("amqtt_rest_bridge/"))
FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    """Return the text of a page, named from the root of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return a section of a page, up to the next heading of its level."""
    match = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert match is not None, title
    rest = text[match.end() :]
    following = re.search(rf"^#{{2,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [block for name, block in FENCED.findall(text) if name == language]


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row, without rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not set("".join(row)) <= set("- ")]


def codes(text: str) -> list[str]:
    """Return what is written in backquotes, but for fenced blocks, also those of lists."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Return a page's own anchors and those that GitHub makes of its headings; the second of a name ends in `-1`."""
    found = set(re.findall(r'<a id="([^"]+)"></a>', FENCED.sub("", text)))
    for heading in re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def links(text: str) -> Iterator[tuple[str, str]]:
    """Yield path and anchor of each link that leads into the repository; the path is empty for the page itself."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
        path, _, anchor = target.partition("#")
        if ":" not in path:
            yield path, anchor
