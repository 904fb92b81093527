"""The library in its database: what is written to it, what the API reads, and the search index that follows it.

Only here are sqlmodel and sqlalchemy imported, only in `postgres` psycopg. From the bottom: `models`, `postgres`;
`database` (open, upgrade, transactions); `importing`, `indexing`; `managing` (states, checks of settings),
`template_library`.
"""

from template_api.library.database import require_database
from template_api.library.importing import Report, import_templates
from template_api.library.indexing import Pace
from template_api.library.managing import (
    delete_template,
    fill_empty_library,
    listed_templates,
    place_faults,
    set_status,
)
from template_api.library.template_library import TemplateLibrary

__all__ = [
    "Pace",
    "Report",
    "TemplateLibrary",
    "delete_template",
    "fill_empty_library",
    "import_templates",
    "listed_templates",
    "place_faults",
    "require_database",
    "set_status",
]
