"""The answer of each path, and the JSON members of its answers (specification, "Resources and their fields").

They run on the server's threads and may be entered by several at once.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlsplit

import falcon
import msgspec

from template_api import query
from template_api.errors import ApiError, ErrorCode
from template_api.library import TemplateLibrary
from template_api.parameters import SummaryField
from template_api.query import Asked, View
from template_api.records import Page, Summary, Word
from template_api.replies import JSON, MAX_BODY_BYTES, Reply, ReplyCache
from template_api.snippets import snippet

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_MEMBERS = [name.value for name in SummaryField if name is not SummaryField.snippet]
_SHOWN_LENGTH = 80


class Answers:
    """The answers of the API from the library; `cache` keeps those to POST, and counts searches."""

    def __init__(self, library: TemplateLibrary, base_url: str, cache: ReplyCache) -> None:
        self._library = library
        self._base_url = base_url
        self._cache = cache

    def listed(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/templates."""
        return self._found(query.list_query(req.query_string), query.LIST_PATH)

    def searched(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/search."""
        return self._found(query.search_query(req.query_string), query.SEARCH_PATH)

    def posted(self, req: falcon.Request) -> Reply:
        """Return the answer of POST /api/search: the results for the query in the JSON body."""
        body = _json_body(req)

        def make() -> Reply:
            return self._found(query.body_query(query.json_body(body)), query.SEARCH_PATH, kept=False)

        return self._cache.reply(req.path, body, make)

    def _found(self, asked: Asked, path: str, *, kept: bool = True) -> Reply:
        """Return the templates that a request asks for, as the list or the search results that a GET of `path` answers.

        Headers name how many there are in all, the words that were changed, and the address of the next ones.
        After POST the next ones are at GET /api/search too; a blank query, which that refuses, has no link.
        """
        wanted = asked.wanted
        page = self._library.find(wanted)
        headers = query.result_headers(asked.ignored, page.corrected) | {"X-Total-Count": str(page.total)}
        following = page.place and replace(wanted, offset=page.place.shown, place=page.place)
        if following and (path == query.LIST_PATH or wanted.text):
            target = f"{urlsplit(self._base_url).path}{path}?{query.query_string(following, asked.view)}"
            if len(target) <= query.HEADER_LENGTH:
                headers["Link"] = f'<{target}>; rel="next"'
        document: dict[str, Any] = {"results": self._results(page, asked.view, path)}
        if asked.view.meta:
            document["meta"] = {
                "total": page.total,
                "corrected": [{"from": word.typed, "to": word.found} for word in page.corrected],
                "ignored": page.ignored,
                "facets": self._library.facets(wanted),
                **({"next_cursor": query.cursor_text(following)} if following else {}),
            }
        return Reply(msgspec.json.encode(document), headers, kept=kept, searched=wanted.text, total=page.total)

    def _results(self, page: Page, view: View, path: str) -> list[dict[str, Any]]:
        results = []
        for each in page.found:
            result = _members(each.summary, self._base_url)
            if path != query.LIST_PATH:
                result["content"] = each.summary.content
                result["score"] = round(each.score, 6)
                result["matched"] = [word.typed if word.typed == word.found else _match(word) for word in each.matched]
            if view.highlight:
                result["snippet"] = snippet(each)
            if view.fields is not None:
                chosen = {*view.fields, "snippet"}  # which is there only where it was asked for
                result = {name: value for name, value in result.items() if name in chosen}
            results.append(result)
        return results

    def suggestions(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/suggest: titles that complete a text."""
        text, ignored = query.suggest_query(req.query_string)
        found, corrected = self._library.suggest(text)
        suggestions = [{"text": each.title, "slug": each.slug or each.id} for each in found]
        return _reply({"suggestions": suggestions}, query.result_headers(ignored, corrected))

    def facets(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/facets: what templates are classified by, with counts."""
        ignored = query.unknown_names(req.query_string)
        return _reply(self._library.facets(), query.result_headers(ignored))

    def template(self, req: falcon.Request, id_or_slug: str) -> Reply:
        """Return the answer of GET /api/templates/{idOrSlug}: one template with the latest cells of its notebooks."""
        template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
        if template is None:
            shown = id_or_slug[:_SHOWN_LENGTH]
            raise ApiError(ErrorCode.TEMPLATE_NOT_FOUND, f'No published template has the id or slug "{shown}"')
        members = _members(template.summary, self._base_url)
        # The specification's table of the template names every member but this one of the summary's.
        del members["broker_version"]
        members["content"] = template.summary.content
        if template.inputs:
            members["inputs"] = [_present(asdict(each)) for each in template.inputs]
        members["notebooks"] = [
            _present(asdict(each) | {"cells": msgspec.Raw(each.cells.encode())}) for each in template.notebooks
        ]
        return _reply({"template": members}, query.result_headers(query.unknown_names(req.query_string)))

    def health(self, _req: falcon.Request) -> Reply:
        """Return the answer of GET /health."""
        return Reply(b'{"status":"ok"}', kept=False)

    def ready(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /ready."""
        self._library.check()
        return self.health(req)

    def metrics(self, _req: falcon.Request) -> Reply:
        """Return the answer of GET /metrics."""
        return Reply(self._cache.metrics(), media_type=_METRICS, kept=False)


def _json_body(req: falcon.Request) -> bytes:
    """Return the body; refuse what is not plain JSON of at most 64 KiB. So is a missing Content-Type.

    Falcon's own media handlers take a media type in lower case only.
    """
    media_type = (req.content_type or "").partition(";")[0].strip().lower()
    coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
    if media_type != JSON or coding != "identity":
        raise ApiError(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    body: bytes = req.bounded_stream.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES or (req.content_length or 0) > MAX_BODY_BYTES:
        raise ApiError(ErrorCode.PAYLOAD_TOO_LARGE)
    return body


def _reply(document: object, headers: Mapping[str, str]) -> Reply:
    return Reply(msgspec.json.encode(document), headers)


def _present(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}


def _match(word: Word) -> dict[str, Any]:
    return {"typed": word.typed, "found": word.found, **({"synonym": True} if word.is_synonym else {})}


def _members(summary: Summary, base_url: str) -> dict[str, Any]:
    """Return a result of a list: without the markdown body."""
    members = {name: getattr(summary, name) for name in _MEMBERS}
    members["url"] = summary.url or f"{base_url}/templates/{summary.slug or summary.id}"
    if summary.difficulty is None:
        del members["difficulty"]
    return members
