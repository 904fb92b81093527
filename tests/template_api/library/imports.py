"""Folders and files for imports, and what is wrong with them."""

import json
from pathlib import Path

from template_api.library import listed_templates
from template_api.sources.reading import read_templates

CELLS = [{"kind": 2, "language": "lot", "value": "DEFINE ROUTE A WITH TYPE REST_API"}]
UUID = "11111111-2222-4333-8444-555555555555"
OTHER_UUID = "99999999-2222-4333-8444-555555555555"


def write_folder(folder: Path, yaml: str | None, content: str | None = None, **notebooks: object) -> Path:
    """Write a template; what is not a text becomes JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"template.yaml": yaml, "README.md": content, **{f"{name}.lotnb": each for name, each in notebooks.items()}}
    for name, held in files.items():
        if held is not None:
            folder.joinpath(name).write_text(held if isinstance(held, str) else json.dumps(held))
    return folder


def write_lines(file: Path, *lines: object) -> Path:
    """Write a .jsonl file."""
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def statuses(url: str) -> dict[str | None, str]:
    return {each.slug: each.status for each in listed_templates(url)}


def faults(path: Path) -> list[str]:
    return [str(fault) for reading in read_templates(path) for fault in reading.faults]
