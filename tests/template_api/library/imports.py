"""Folders and files for imports, and what a library holds after them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from template_api.library import listed_templates
from template_api.sources.reading import read_templates

if TYPE_CHECKING:
    from tests.support.library_store import Store
CELLS = [{"kind": 2, "language": "lot", "value": "DEFINE ROUTE A WITH TYPE REST_API"}]


def write_folder(folder: Path, yaml: str, content: str | None = None, **notebooks: object) -> Path:
    folder.mkdir(parents=True)
    folder.joinpath("template.yaml").write_text(yaml)
    if content is not None:
        folder.joinpath("README.md").write_text(content)
    for name, cells in notebooks.items():
        folder.joinpath(f"{name}.lotnb").write_text(cells if isinstance(cells, str) else json.dumps(cells))
    return folder


def statuses(url: str) -> dict[str | None, str]:
    return {each.slug: each.status for each in listed_templates(url)}


def read_one(store: "Store", name: str = "one") -> dict[str, Any]:
    return dict(store.client().get(f"/api/templates/{name}").json["template"])


def faults(path: Path) -> list[str]:
    return [str(fault) for reading in read_templates(path) for fault in reading.faults]
