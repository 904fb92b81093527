"""The ranking as a search function, for measuring it on test collections with relevance judgements."""

from collections.abc import Callable, Mapping, Sequence

from tests.template_api.ranking.indexed import document, indexed


def factory(documents: Sequence[Mapping[str, str]]) -> Callable[[str, int], list[str]]:
    """Index documents with the members id, title and body as templates; return a search for the ids of the best."""
    ranking = indexed(
        document(
            key=each["id"],
            title=each["title"] or each["body"][:60],
            labels="",
            short_description=each["body"][:200],
            content=each["body"],
            cells="",
        )
        for each in documents
    )
    return lambda query, count: [hit.template for hit in ranking.search(query, count).found]
