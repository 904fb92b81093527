"""A ranking over documents, in memory."""

from collections.abc import Iterable

from template_api.ranking import Document, Ranking, SearchIndex


def indexed(documents: Iterable[Document]) -> Ranking:
    """Return a ranking over documents."""
    index = SearchIndex(None)
    for document in documents:
        index.put(document)
    index.commit("")
    return index.ranking
