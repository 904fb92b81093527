"""Template folders, `.jsonl` files and lists of synonyms, read into checked values; without the database.

From the bottom: `members`, `template`, `reading`, `synonyms`.
"""

from template_api.sources.members import NamedSource
from template_api.sources.reading import Reading, read_templates
from template_api.sources.synonyms import read_synonyms, shipped_synonyms
from template_api.sources.template import NotebookSource, TemplateSource

__all__ = [
    "NamedSource",
    "NotebookSource",
    "Reading",
    "TemplateSource",
    "read_synonyms",
    "read_templates",
    "shipped_synonyms",
]
