"""Hybrid ranking: BM25F over weighted fields, with misspellings corrected in the query and a bonus for titles.

A query is corrected before anything is ranked, so a misspelt word costs a look in the vocabulary and not a scan of all
texts. tantivy finds the best 60 by BM25F; their titles decide among them. A `Ranking` is one state of the index and
never changes: any number of threads search in it, while one thread writes the next state. Measured in
template_api/ARCHITECTURE.md (`tests/benchmarks/ranking.py`, `search_quality.py`).

`tokens` is the only module that imports rapidfuzz and PyStemmer; tantivy is imported nowhere else. From the bottom:
`tokens` (words, stems, likeness); `fields` (what is indexed); `vocabulary` (known and near words, synonyms); `meaning`
(what a query means); `engine` (the index and the search in it).
"""

from template_api.ranking.engine import Filters, Ranking, SearchIndex
from template_api.ranking.fields import Document, Prepared, prepared
from template_api.ranking.tokens import stem, words
from template_api.ranking.vocabulary import Synonyms

__all__ = ["Document", "Filters", "Prepared", "Ranking", "SearchIndex", "Synonyms", "prepared", "stem", "words"]
