"""The classifiers of templates during an import: categories, tags, routes and broker versions.

A classifier is an object with `id`, `name`, `slug` and what its author has added. Each template has a copy of its
classifiers (`TemplateRow.facets`), so an import that changes a classifier changes every template that has it.
Blocks on the database.
"""

from sqlmodel import Session, col, select

from template_api.library.database import mark_changed
from template_api.library.models import FILTERS, FacetRow, TemplateRow, classifier_names, classifiers_of, slug_id
from template_api.records import FreeForm
from template_api.sources.members import NamedSource

_PLURALS = {"category": "categories", "broker_version": "broker_versions"}


class Classifiers:
    """The classifiers that one import has stored so far. Their kinds are the members of `TemplateRow.facets`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stored: dict[tuple[str, str], FreeForm] = {}  # by kind and slug

    def forget(self) -> None:
        """Forget all, since a transaction that may have stored some was rolled back."""
        self._stored.clear()

    def store(self, kind: str, source: NamedSource) -> FreeForm:
        """Return the classifier that a source names, as the library has it from now on.

        A slug that the library has keeps its id; if anything else differs, all templates with this classifier are
        changed. If sources of one import differ, the first one counts, so that templates are changed once.

        Raises:
            ValueError: another classifier of this kind has the id that the source gives.
        """
        if stored := self._stored.get((kind, source.slug)):
            return stored
        facet = FacetRow.facet == f"{FILTERS[kind]}:{source.slug}"
        with_it = col(TemplateRow.id).in_(select(FacetRow.template_id).where(facet))
        facets = self._session.exec(select(TemplateRow.facets).where(with_it).limit(1)).first()
        held = classifiers_of(facets, kind) if facets else ()
        known = next((one for one in held if one["slug"].lower() == source.slug), None)
        if known is None and source.id and self._is_taken(kind, source.id):
            raise ValueError(f"{kind} {source.slug!r} has the id of another one")
        id_ = known["id"] if known else source.id or slug_id(f"{_PLURALS.get(kind, kind)}/{source.slug}")
        named = {"id": id_, "name": source.name, "slug": source.slug}
        # A source that is a plain name leaves the further members as they are.
        classifier = {**(known or {}), **named} if source.members is None else {**named, **source.members}
        if known and known != classifier:
            for row in self._session.exec(select(TemplateRow).where(with_it)).all():
                keywords = row.labels.removeprefix(classifier_names(row.facets)).strip()
                before = row.facets[kind]
                several = isinstance(before, list)
                after = [classifier if one["id"] == id_ else one for one in before] if several else classifier
                row.classify({**row.facets, kind: after}, keywords)
                mark_changed(self._session, row)
        self._stored[kind, source.slug] = classifier
        return classifier

    def _is_taken(self, kind: str, id_: str) -> bool:
        """Return whether a classifier of a kind has an id, in this import or in the library."""
        if any(one["id"] == id_ for (stored_kind, _), one in self._stored.items() if stored_kind == kind):
            return True
        facet = FacetRow.facet == f"{FILTERS[kind]}:{id_}"
        return self._session.exec(select(FacetRow.template_id).where(facet).limit(1)).first() is not None
