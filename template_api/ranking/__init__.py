"""Hybrid ranking: BM25F over weighted fields, with misspellings put right in the query and a bonus for titles.

A package of pure modules without I/O; `fuzzy` is the only one that imports rapidfuzz. From the bottom: `stemmer`,
`tokens`, `fuzzy`; `vocabulary` (known words), `postings` (the index); `interpretation` (a query's words), `building`;
`engine`.
"""

from template_api.ranking.engine import Document, Hit, Match, Ranked, Ranking

__all__ = ["Document", "Hit", "Match", "Ranked", "Ranking"]
