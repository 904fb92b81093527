"""The library in its database: what is written to it, what the API reads, and the search index that follows it.

Only here are sqlmodel (in `models`) and sqlalchemy imported, in `postgres` alone psycopg. From the bottom: `tables`,
`models`, `postgres`;
`database` (open, upgrade, transactions); `statements`, `writer`, `index_folder`; `indexing`; `importer`,
`settings_check`, `states`, `template_library`.
"""

from template_api.library.database import require_database
from template_api.library.importer import fill_empty_library, import_templates
from template_api.library.index_folder import index_folder
from template_api.library.settings_check import place_faults
from template_api.library.states import listed_templates, set_status
from template_api.library.template_library import TemplateLibrary
from template_api.library.writer import Outcome, Report

__all__ = [
    "Outcome",
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
