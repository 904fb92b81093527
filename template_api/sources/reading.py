"""From files to `TemplateSource`: template folders with their notebooks, and `.jsonl` files.

Blocks on the file system. Yields one `Reading` for each template found, so that a bad one never stops the others.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from template_api.errors import SourceError, StartError
from template_api.sources.fields import Fields
from template_api.sources.files import LARGEST_FILE, file_text, parsed_json, yaml_fields
from template_api.sources.template import (
    TemplateSource,
    listed_notebooks,
    note_oddities,
    notebook_sources,
    template_source,
)

TEMPLATE_FILES = ("template.yaml", "template.yml")
CONTENT_FILE = "README.md"
NOTEBOOK_SUFFIX = ".lotnb"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading one template: its source, or its faults.

    `done` and `total` are the progress, in templates or in bytes.
    """

    source: TemplateSource | None
    faults: tuple[SourceError, ...]
    warnings: tuple[str, ...]
    done: int
    total: int


def read_templates(path: Path) -> Iterator[Reading]:
    """Read a `.jsonl` file, or the template folders under a folder at any depth, in the order of their names.

    Raises:
        StartError: there is no such file or folder, or it holds no template.
    """
    try:
        mode = path.stat().st_mode  # not is_dir and is_file, which hide every error since Python 3.14
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise StartError(f"{path}: there is no such file or folder") from exc
    except OSError as exc:
        raise StartError(f"{path}: cannot be read: {exc.strerror}") from exc
    if path.suffix == ".jsonl" and stat.S_ISREG(mode):
        return _read_lines(path)
    if not stat.S_ISDIR(mode):
        raise StartError(f"{path}: is neither a folder nor a .jsonl file")
    files, unreadable = _template_files(path)
    total, resolved = len(files) + len(unreadable), path.resolve()
    numbered = enumerate(files, len(unreadable) + 1)
    return chain(
        (Reading(None, (fault,), (), number, total) for number, fault in enumerate(unreadable, 1)),
        (_reading(partial(_read_folder, resolved, file), number, total) for number, file in numbered),
    )


def _template_files(root: Path) -> tuple[list[Path], list[SourceError]]:
    """Return the template files under a folder, and the folders that cannot be read as what they seem to be."""
    found: list[Path] = []
    unreadable: list[SourceError] = []
    within: set[Path] = set()  # the folders of templates, and all below them

    def note(exc: OSError) -> None:
        unreadable.append(SourceError(str(exc.filename), f"cannot be read: {exc.strerror}"))

    for where, folders, files in os.walk(root, onerror=note):
        folders.sort()
        names = [name for name in TEMPLATE_FILES if name in files]
        folder = Path(where)
        found.extend(folder / name for name in names[:1])
        if names or folder.parent in within:
            within.add(folder)
        elif CONTENT_FILE in files and any(map(_is_notebook, files)):
            reason = f"holds {CONTENT_FILE} and notebooks, but no {TEMPLATE_FILES[0]}; write one, with a title at least"
            unreadable.append(SourceError(where, reason))
    if not found and not unreadable:
        raise StartError(f"{root}: no template.yaml was found in it")
    return found, unreadable


def _reading(read: Callable[[], tuple[Fields, TemplateSource | None]], done: int, total: int) -> Reading:
    try:
        fields, source = read()
    except SourceError as exc:
        return Reading(None, (exc,), (), done, total)
    return Reading(source, fields.faults, tuple(fields.warnings), done, total)


def _read_folder(root: Path, file: Path) -> tuple[Fields, TemplateSource | None]:
    fields = yaml_fields(root, file)
    content = file.parent / CONTENT_FILE
    text = fields.checked("", file_text, root, content) if os.path.lexists(content) else ""
    folder = file.parent
    listed = listed_notebooks(fields, with_cells=False)
    present = sorted(each.name for each in folder.iterdir() if _is_notebook(each.name) and each.is_file())
    for filename in listed.keys() - set(present):
        reason = f"names {filename!r}, which is not a {NOTEBOOK_SUFFIX} file of this folder"
        fields.note(fields.fault("notebooks", reason))
    # Those that it does not list follow by name.
    order = [*(name for name in listed if name in present), *(name for name in present if name not in listed)]

    def cells_of(filename: str) -> tuple[str, object]:
        return str(folder / filename), parsed_json(folder / filename, file_text(root, folder / filename))

    notebooks = notebook_sources(fields, listed, order, cells_of)
    note_oddities(fields, notebooks)
    return fields, template_source(fields, text, notebooks, default_slug=folder.absolute().name)


def _is_notebook(filename: str) -> bool:
    return filename.lower().endswith(NOTEBOOK_SUFFIX)


def _read_lines(file: Path) -> Iterator[Reading]:
    total = file.stat().st_size
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(LARGEST_FILE + 1):
            number, done = number + 1, lines.tell()
            if line.strip():
                yield _reading(partial(_read_line, file, number, line), done, total)
            while len(line) > LARGEST_FILE and not line.endswith(b"\n"):  # the rest of one that is too long
                line = lines.readline(LARGEST_FILE + 1)


def _read_line(file: Path, number: int, line: bytes) -> tuple[Fields, TemplateSource | None]:
    where = f"{file}:{number}"
    if len(line) > LARGEST_FILE:
        raise SourceError(where, f"is longer than {LARGEST_FILE} bytes")
    try:
        members = parsed_json(file, line.decode("utf-8-sig"), number)
    except UnicodeDecodeError as exc:
        raise SourceError(where, f"is not UTF-8 at byte {exc.start}") from exc
    if not isinstance(members, dict):
        raise SourceError(where, "must hold a JSON object")
    fields = Fields(str(file), members, {}, number)
    content = members.get("content")
    if content is not None and not isinstance(content, str):
        fields.note(fields.fault("content", "must be text"))
        content = ""
    listed = listed_notebooks(fields, with_cells=True)
    notebooks = notebook_sources(fields, listed, list(listed), lambda name: (where, listed[name].cells))
    note_oddities(fields, notebooks, also=["content"])
    return fields, template_source(fields, content or "", notebooks)
