"""`TemplateSource`: one template as its author described it; pydantic checks it, and finds all its faults. Pure."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    HttpUrl,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from template_api.records import Difficulty, Status
from template_api.sources.members import (
    Identifier,
    NamedSource,
    NamedSources,
    Slug,
    Text,
    Time,
    Written,
    is_uuid,
    json_text,
    once,
    several,
    storable,
)

PRIMARY_ROLE = "solution"
_FILE_NAME_MEMBERS = ("filename", "file", "name")  # of a notebook
_MOST_NOTEBOOKS = 1000  # of a template; with aliases of YAML a short file can list very many
_LONGEST_SHOWN = 60  # of a value, in a message
_BLOCK_COMMENT = re.compile(r"/\*(?>(?:[^*]+|\*(?!/))*)(?:\*/)?")  # fast, too, for many /* without an end
_ROUTE = re.compile(r"^[ \t]*DEFINE\s+ROUTE\s+\S+\s+WITH\s+TYPE\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


def cells_text(cells: object) -> str:
    """Return the cells of a notebook as JSON; raise `ValueError` if they are not a list of objects."""
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("must be a JSON array of cells {kind, language, value}")  # pydantic reports a ValueError
    return json_text(cells)


class NotebookSource(Written):
    """A notebook file; `cells` is a JSON array, `role` what the template uses it for.

    In a `.jsonl` file a notebook has its own cells. In a folder they are read from its file, see `TemplateSource`.
    """

    filename: Annotated[Text, Field(min_length=1, max_length=255, validation_alias=AliasChoices(*_FILE_NAME_MEMBERS))]
    role: Annotated[Text, Field(max_length=255)] | None = None
    is_primary: bool = Field(default=False, validation_alias=AliasChoices("is_primary", "primary"))
    cells: str = Field(default="", validate_default=True)

    @field_validator("cells", mode="before")
    @classmethod
    def _own_cells(cls, cells: object, info: ValidationInfo) -> str:
        return cells_text(cells) if info.context is None else ""


def _with_roles(given: Any) -> Any:
    """Return `notebooks` as a list. It may map roles to files: each role to a name or object, or to a list of them."""
    listed = several(given)
    if isinstance(given, Mapping) and given.keys().isdisjoint(_FILE_NAME_MEMBERS):
        pairs = ((role, one) for role, held in given.items() for one in (held if isinstance(held, list) else [held]))
        listed = [
            {**(one if isinstance(one, Mapping) else {"name": one}), "role": role}
            for role, one in islice(pairs, _MOST_NOTEBOOKS + 1)
            if one not in (None, "")
        ]
    if isinstance(listed, list) and len(listed) > _MOST_NOTEBOOKS:
        raise ValueError(f"must name at most {_MOST_NOTEBOOKS} files")
    return listed


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


_Description = Annotated[Text, Field(max_length=5000)]


class TemplateSource(Written):
    """A template; one of `id` and `slug` may be None.

    The pydantic context of a template in a folder has the cells of the folder's notebook files, by file name, or None
    for a file that cannot be read. Without a context each notebook has its own cells.
    """

    id: Identifier | None = None
    slug: Slug | None = None
    title: Annotated[Text, Field(max_length=500)]
    summary: _Description = ""
    short_description: _Description = ""
    category: NamedSource | None = None
    difficulty: Annotated[Difficulty, BeforeValidator(_lower)] | None = None
    tags: NamedSources | None = None
    primitives: NamedSources = Field(default=[])
    protocols: NamedSources = Field(default=[])
    services: NamedSources = Field(default=[])
    routes: NamedSources = Field(default=[])
    broker_version: NamedSource | None = None
    verified_broker_version: NamedSource | None = None
    status: Annotated[Status, BeforeValidator(_lower)] = Status.PUBLISHED
    published_at: Time | None = None
    notebooks: Annotated[list[NotebookSource], BeforeValidator(_with_roles)] = Field(default=[], validate_default=True)
    url: HttpUrl | None = None
    content: Annotated[str, StringConstraints(strip_whitespace=False), AfterValidator(storable)] = ""

    @field_validator("notebooks")
    @classmethod
    def _complete_notebooks(cls, listed: list[NotebookSource], info: ValidationInfo) -> list[NotebookSource]:
        """Add the cells, and the notebooks of the folder that are not listed; mark the primary notebooks.

        If no notebook is marked as primary, those with the role `solution` are; without such ones, the first is.
        """
        files: Mapping[str, str | None] | None = info.context
        names = [each.filename for each in listed]
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise ValueError(f"names {twice[0]!r} twice")
        if files is not None:
            if gone := [name for name in names if name not in files]:
                raise ValueError(f"names {', '.join(map(repr, gone))}, which is not a .lotnb file of this folder")
            listed += [NotebookSource.model_construct(filename=name) for name in files if name not in names]
            for each in listed:
                each.cells = files[each.filename] or ""
        if not any(each.is_primary for each in listed):
            primary = [each for each in listed if (each.role or "").lower() == PRIMARY_ROLE]
            for each in primary or listed[:1]:
                each.is_primary = True
        return listed

    @model_validator(mode="after")
    def _merge(self) -> Self:
        """Merge the members that may be written in several ways."""
        if self.id is not None and not is_uuid(self.id):
            self.slug, self.id = self.slug or self.id, None
        name = self.slug or self.id
        if name is None:
            raise ValueError("slug is required (or an id)")
        self.title = self.title or name
        self.short_description = self.short_description or self.summary
        self.broker_version = self.broker_version or self.verified_broker_version
        return self

    @property
    def all_tags(self) -> list[NamedSource]:
        """The tags; without `tags` the primitives, protocols and services."""
        return once([*self.primitives, *self.protocols, *self.services]) if self.tags is None else self.tags

    @property
    def keywords(self) -> list[str]:
        """Names that are not tags, so that only the search reads them."""
        named = () if self.tags is None else (*self.primitives, *self.protocols, *self.services)
        return [each.name for each in named]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells of all notebooks."""
        return list(chain.from_iterable(json.loads(each.cells) for each in self.notebooks))

    @property
    def all_routes(self) -> list[NamedSource]:
        """The routes that it names, and the types of the routes that its cells define."""
        types = dict.fromkeys(defined_routes("\n".join(lot_texts(self.cells))))
        return once([*self.routes, *(NamedSource(name=name) for name in types)])

    @property
    def cells_text(self) -> str:
        """What the search reads of the cells."""
        return "\n".join(map(_cell_text, self.cells)).replace("\0", " ")

    def digest(self) -> str:
        """Return a hash of what its author wrote."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=20).hexdigest()


_REASONS = {
    "string_type": "must be text",
    "string_unicode": "holds a lone surrogate, which is not Unicode text",
    "too_long": "must have at most {max_length} characters",
    "enum": "must be one of {expected}, not {given!r}",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false, not {given!r}",
    "list_type": "must be a list",
    "missing": "is required",
    "url_scheme": "must be an http or https address",
    "url_parsing": "must be an http or https address",
}
"""Our message for each type of pydantic's errors."""


def reasons(exc: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the member that each fault is in, and a sentence about it; entries of lists are counted from 1."""
    for fault in exc.errors(include_url=False):
        place = [each if isinstance(each, str) else f"entry {each + 1}:" for each in fault["loc"]]
        reason = fault["msg"].removeprefix("Value error, ")
        if known := _REASONS.get(fault["type"]):
            given = fault["input"][:_LONGEST_SHOWN] if isinstance(fault["input"], str) else "a list or an object"
            reason = known.format(**fault.get("ctx", {}), given=given)
        yield (place[0] if place else ""), " ".join([*place, reason])


def lot_texts(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the texts of the cells in the route language."""
    for cell in cells:
        if str(cell.get("language", "lot")).lower() == "lot":
            yield _cell_text(cell)


def defined_routes(lot: str) -> list[str]:
    """Return the type of each `DEFINE ROUTE ... WITH TYPE x` in a text, in capitals."""
    return [match[1].upper() for match in _ROUTE.finditer(_BLOCK_COMMENT.sub(" ", lot))]


def _cell_text(cell: Mapping[str, Any]) -> str:
    value = cell.get("value", "")
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
