"""The library in its database: what is written to it, what the API reads, and the search index that follows it.

Only here are sqlmodel (in `models`) and sqlalchemy imported, only in `postgres` psycopg. From the bottom: `models`,
`postgres`; `database` (tables, open, upgrade, transactions); `statements`, `writer`; `indexing`; `managing` (import,
states, checks of settings), `template_library`.
"""

from template_api.library.database import require_database
from template_api.library.indexing import Pace, index_folder
from template_api.library.managing import (
    fill_empty_library,
    import_templates,
    listed_templates,
    place_faults,
    set_status,
)
from template_api.library.template_library import TemplateLibrary
from template_api.library.writer import Outcome, Report

__all__ = [
    "Outcome",
    "Pace",
    "Report",
    "TemplateLibrary",
    "fill_empty_library",
    "import_templates",
    "index_folder",
    "listed_templates",
    "place_faults",
    "require_database",
    "set_status",
]
