"""The library in its database: what is written to it, what the API reads, and the search index that follows it.

Only here are sqlmodel and sqlalchemy imported, only in `postgres` psycopg. From the bottom: `models`, `postgres`;
`database` (open, upgrade, transactions); `classifiers`; `importing`, `indexing`; `managing` (states, checks of
settings), `template_library`.
"""

from template_api.library.database import require_database as require_database
from template_api.library.importing import Report as Report
from template_api.library.importing import import_templates as import_templates
from template_api.library.indexing import Pace as Pace
from template_api.library.managing import delete_template as delete_template
from template_api.library.managing import fill_empty_library as fill_empty_library
from template_api.library.managing import listed_templates as listed_templates
from template_api.library.managing import place_faults as place_faults
from template_api.library.managing import set_status as set_status
from template_api.library.template_library import TemplateLibrary as TemplateLibrary
