"""The ranking as a search function, for measuring it on test collections with relevance judgements."""

from collections.abc import Callable, Mapping, Sequence

from template_api.ranking import Document
from tests.template_api.ranking.indexed import indexed


def factory(documents: Sequence[Mapping[str, str]]) -> Callable[[str, int], list[str]]:
    """Index documents with the members id, title and body as templates; return a search for the ids of the best."""
    ranking = indexed(
        Document(
            key=document["id"],
            title=document["title"] or document["body"][:60],
            labels="",
            short_description=document["body"][:200],
            content=document["body"],
            cells="",
        )
        for document in documents
    )
    return lambda query, count: [hit.key for hit in ranking.search(query, count).hits]
