"""How one template is written: its row, what it links to, and the versions of its notebooks. Blocks on the database."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

from sqlmodel import Session, col, delete, insert, select, update

from template_api.library.models import (
    BrokerVersion,
    Category,
    LibraryRow,
    Named,
    NotebookRow,
    Tag,
    TemplateRoute,
    TemplateRow,
    TemplateTag,
    UsedRoute,
    having,
)
from template_api.library.upgrades import now_text, prepared_text
from template_api.records import FreeForm, Status
from template_api.sources.fields import NamedSource
from template_api.sources.template import NotebookSource, TemplateSource

NAMESPACE = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")
"""Namespace of the ids made from slugs (UUIDv5), so that they are the same in every database."""


_AS_GIVEN = ("slug", "title", "short_description", "content", "difficulty", "url")  # members of a source


class Outcome(StrEnum):
    """What an import did with one template."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of an import by number; `pruned` is False when pruning was asked for but something failed."""

    counts: Mapping[Outcome, int]
    pruned: bool

    @property
    def failed(self) -> int:
        """How many templates could not be imported."""
        return self.counts[Outcome.FAILED]

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[each]} {each}" for each in Outcome if each != "hidden" or self.counts[each])


class TemplateWriter:
    """Write templates in a session, one transaction each.

    Args:
        session: of a connection with the execution option `writes`; no transaction is open.
        dry_run: roll each transaction back.
    """

    def __init__(self, session: Session, *, dry_run: bool = False) -> None:
        self._session = session
        self._dry_run = dry_run
        self._named: dict[tuple[type[Named], str], FreeForm] = {}  # in this import, by slug

    def store(self, source: TemplateSource, id_: str) -> Outcome:
        """Write one template in one transaction.

        Raises:
            sqlalchemy.exc.IntegrityError: its slug or an id in it belongs to another object.
        """
        try:
            outcome = self._store(source, id_)
            if self._dry_run:
                self._undo()
            else:
                self._session.commit()
        except BaseException:
            self._undo()
            raise
        return outcome

    def _undo(self) -> None:
        self._session.rollback()
        self._named.clear()  # some may be those of this transaction

    def _store(self, source: TemplateSource, id_: str) -> Outcome:
        session = self._session
        version = next_version(session)
        row = session.get(TemplateRow, id_)
        renamed: list[tuple[type[Named], FreeForm]] = []
        facets: dict[str, Any] = {
            "category": source.category and self._object(Category, source.category, renamed),
            "tags": [self._object(Tag, each, renamed) for each in source.tags],
            "routes": [self._object(UsedRoute, each, renamed) for each in source.routes],
            "broker_version": source.broker_version and self._object(BrokerVersion, source.broker_version, renamed),
        }
        # A state that was set by command stays until the source itself has a new one.
        status = source.status if row is None or row.source_status != source.status else row.status
        published_at = source.published_at or (row.published_at if row is not None else None)
        if published_at is None and status == Status.PUBLISHED:
            published_at = now_text()
        stored = TemplateRow(
            **{name: getattr(source, name) for name in _AS_GIVEN},
            id=id_,
            status=status,
            source_status=source.status,
            published_at=published_at,
            category_id=facets["category"] and facets["category"]["id"],
            broker_version_id=facets["broker_version"] and facets["broker_version"]["id"],
            cells_text="\n".join(notebook.text for notebook in source.notebooks),
            digest=source.digest(),
            inputs=json.dumps([astuple(each) for each in source.inputs], ensure_ascii=False),
            facets="",
            labels="",
            changed=version,
        )
        _describe(stored, facets, " ".join(source.keywords), version)
        session.merge(stored)
        session.flush()
        for link, column, named in ((TemplateTag, "tag_id", "tags"), (TemplateRoute, "route_id", "routes")):
            if row is not None:
                session.exec(delete(link).where(col(link.template_id) == id_))
            if facets[named]:
                session.execute(insert(link), [{"template_id": id_, column: each["id"]} for each in facets[named]])
        _store_notebooks(session, id_, source.notebooks, is_new=row is None)
        for table, named_object in renamed:
            _rename(session, table, named_object, but=id_)
        return Outcome.ADDED if row is None else Outcome.CHANGED

    def _object(self, table: type[Named], source: NamedSource, renamed: list[tuple[type[Named], FreeForm]]) -> FreeForm:
        """Return the stored object with a slug, made when there is none; note it when it gets another name.

        Decision: of several spellings in one import the first counts, so that it is renamed once.
        """
        found = self._named.get((table, source.slug))
        if found is not None:
            return found
        row = self._session.exec(select(table).where(col(table.slug) == source.slug)).one_or_none()
        members = source.members if row is None or source.members is not None else row.members
        members = None if members == "{}" else members
        is_new = row is None
        if row is None:
            id_ = source.id or str(uuid.uuid5(NAMESPACE, f"{table.__tablename__}/{source.slug}"))
            row = table(id=id_, name=source.name, slug=source.slug)
        named = {"id": row.id, "name": source.name, "slug": source.slug, **json.loads(members or "{}")}
        if is_new or (row.name, row.members) != (source.name, members):
            row.name, row.members = source.name, members
            self._session.add(row)
            if not is_new:
                renamed.append((table, named))
        self._named[table, source.slug] = named
        return named


def _describe(row: TemplateRow, facets: Mapping[str, Any], keywords: str, version: int) -> None:
    """Put what a template is classified by into its row, and its texts as the index takes them."""
    row.facets = json.dumps(facets, ensure_ascii=False, separators=(",", ":"))
    row.labels = _joined(_names(facets), keywords)
    row.prepared = prepared_text(row.title, row.labels, row.short_description, row.content, row.cells_text)
    row.changed, row.updated_at = version, now_text()


def _names(facets: Mapping[str, Any]) -> str:
    named = [*facets["tags"], *facets["routes"], facets["category"], facets["broker_version"]]
    return _joined(*(each["name"] for each in named if each))


def _joined(*texts: str) -> str:
    return " ".join(filter(None, texts))


def _rename(session: Session, table: type[Named], named: FreeForm, but: str) -> None:
    """Show an object by its new name in each template that has it, `but` in one that has it already."""
    id_ = named["id"]
    for row in session.exec(select(TemplateRow).where(having(table, [id_]), col(TemplateRow.id) != but)).all():
        before = json.loads(row.facets)
        keywords = row.labels.removeprefix(_names(before)).strip()
        after = {
            kind: [named if each["id"] == id_ else each for each in value]
            if isinstance(value, list)
            else named if value and value["id"] == id_ else value
            for kind, value in before.items()
        }  # fmt: skip
        _describe(row, after, keywords, next_version(session))
        session.add(row)
    session.flush()


def template_id(slug: str) -> str:
    """Return the id of a template that has none of its own."""
    return str(uuid.uuid5(NAMESPACE, slug))


def next_version(session: Session) -> int:
    """Add one to the library's version, which also makes other writers wait, and return it."""
    statement = update(LibraryRow).values(version=LibraryRow.version + 1).returning(col(LibraryRow.version))
    return int(session.connection().execute(statement).scalar_one())


def _store_notebooks(session: Session, template_id: str, sources: Sequence[NotebookSource], *, is_new: bool) -> None:
    """Store notebooks: changed cells become a new version, earlier ones stay, the latest of each file is marked."""
    of_template = col(NotebookRow.template_id) == template_id
    known = select(NotebookRow).where(of_template).order_by(col(NotebookRow.version))
    rows = [] if is_new else session.exec(known).all()
    newest = {row.filename: row for row in rows}
    for old in rows:
        old.is_latest = False
    for place, source in enumerate(sources):
        before = newest.get(source.filename)
        if before is not None and before.cells == source.cells:
            before.is_primary, before.role, before.is_latest, before.place = source.is_primary, source.role, True, place
            continue
        row = NotebookRow(
            template_id=template_id, filename=source.filename, version=before.version + 1 if before else 1,
            is_primary=source.is_primary, role=source.role, is_latest=True, place=place, cells=source.cells,
        )  # fmt: skip
        session.add(row)
