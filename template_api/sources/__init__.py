"""Template folders and `.jsonl` files, read into checked values; without the database.

From the bottom: `fields`; `files`, `template`; `reading`.
"""

from template_api.sources.reading import Reading, read_templates

__all__ = ["Reading", "read_templates"]
