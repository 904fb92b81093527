"""What the project decided where its specification is silent: the sentences of the documents that begin "Decision:".

    python -m tests.documents.decisions

prints them, page by page.
"""

import re

from tests.support.documents import FENCED, PAGES, page

WRITTEN_HERE = {"tests/README.md", "CHANGELOG.md"}
"""Pages that speak of decisions, but make none."""
_PIECE = re.compile(r"\n\s*\n|\n(?=\s*(?:- |\||\d+\. |#))")


def decisions(name: str) -> list[str]:
    """Return the decisions of a page, each without its mark, up to the next one or the end of its paragraph."""
    found = []
    for piece in _PIECE.split(FENCED.sub("", page(name))):
        _, *texts = re.split(r"\bDecision:", piece)
        found += [" ".join(text.split()) for text in texts]
    return found


def main() -> None:
    """Print the decisions of all pages."""
    for name in PAGES:
        if name not in WRITTEN_HERE and (found := decisions(name)):
            print(f"{name} ({len(found)})")
            print("".join(f"  {text}\n" for text in found))


if __name__ == "__main__":
    main()
