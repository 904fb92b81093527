"""The index in memory: what is put and removed counts from a commit on, which makes a new `Ranking`.

One thread writes; any thread may take the ranking.
"""

from collections.abc import Collection
from typing import Final

from tantivy import Index

from template_api.ranking.engine import Ranking
from template_api.ranking.fields import Document, entry, schema
from template_api.ranking.vocabulary import Vocabulary

# Documents are held until a part of the index is complete. With the least that tantivy takes, 15 MB, a part has 170
# templates of 300 words, and there are so many more parts to merge.
_WRITER_BYTES: Final = 30_000_000


class SearchIndex:
    """An index in memory; `ranking` is its state at the last commit."""

    def __init__(self) -> None:
        self._index = Index(schema())
        self._index.config_reader("manual")
        self._writer = self._index.writer(_WRITER_BYTES, 1)
        self._added: set[str] = set()  # words, since the last commit
        self._is_empty = True
        self.ranking = self._ranked()

    def put(self, document: Document) -> None:
        """Add a document, or replace the one with its key, from the next commit on."""
        self.remove(document.key)
        self._writer.add_document(entry(document))
        if not self._is_empty:
            self._added.update(document.texts.words.split())

    def remove(self, key: str) -> None:
        """Remove the document with this key, if there is one, from the next commit on."""
        self._writer.delete_documents_by_term("key", key)

    def commit(self) -> None:
        """Make what was put and removed count."""
        self._writer.commit()
        self._index.reload()
        self.ranking = self._ranked(None if self._is_empty else self._added)
        self._added, self._is_empty = set(), False

    def _ranked(self, added: Collection[str] | None = None) -> Ranking:
        """Return the state of now; `added` are the words that it has beside those of the state before, if known."""
        searcher = self._index.searcher()
        known = Vocabulary.of(searcher) if added is None else self.ranking.vocabulary.grown(searcher, added)
        return Ranking(searcher, known)
