"""A ranking over documents."""

from collections.abc import Iterable
from typing import Any

from template_api.ranking import Document, Ranking, SearchIndex, prepared


def document(
    key: str, title: str, labels: str, short_description: str, content: str, cells: str, **others: Any
) -> Document:
    """Return a template as the ranking sees it."""
    return Document(key, prepared(title, labels, short_description, content, cells), **others)


def indexed(documents: Iterable[Document]) -> Ranking:
    """Return a ranking over documents."""
    index = SearchIndex()
    for each in documents:
        index.put(each)
    index.commit()
    return index.ranking
