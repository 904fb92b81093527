"""The answer of each path, and the JSON members of its answers (specification, "Resources and their fields").

They run on the server's threads and may be entered by several at once.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import falcon
import msgspec

from template_api import query
from template_api.errors import PayloadTooLargeError, TemplateNotFoundError, UnsupportedMediaTypeError
from template_api.library import TemplateLibrary
from template_api.records import Found, Summary, Template, TemplateQuery, Word
from template_api.replies import JSON, Get, Reply, ReplyCache, encoded, send_whole

_SHOWN_LENGTH = 80
_LINK_LENGTH = 4096  # a longer header would not pass every proxy


class Answers:
    """The answers of the API, from the library or its cache.

    Args:
        library: what is read.
        base_url: the public address of this API, without a trailing slash.
    """

    def __init__(self, library: TemplateLibrary, base_url: str) -> None:
        self._library = library
        self._root = urlsplit(base_url).path
        self._base_url = base_url
        self._cache = ReplyCache()

    def listed(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/templates."""
        return self.found(query.list_query(req.query_string), list_view, query.LIST_PATH)

    def searched(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/search."""
        return self.found(query.search_query(req.query_string), search_view, query.SEARCH_PATH)

    def found(self, wanted: TemplateQuery, view: Callable[[Iterable[Found], str], object], path: str | None) -> Reply:
        """Return the templates that a query asks for, as a list or as search results.

        Headers name how many there are in all, and the address of the next ones: at a GET of `path`, None without one.
        Decision: after POST the next ones are at GET /api/search too; a blank query, which that refuses, has no link.
        """

        def make() -> Reply:
            page = self._library.find(wanted)
            headers = [("X-Total-Count", str(page.total))]
            following = wanted.offset + wanted.limit
            if path is not None and following < page.total and following <= query.MOST_OFFSET:
                target = f"{self._root}{path}?{query.query_string(replace(wanted, offset=following))}"
                if len(target) <= _LINK_LENGTH:
                    headers.append(("Link", f'<{target}>; rel="next"'))
            return Reply(encoded(view(page.found, self._base_url)), headers)

        return self._cache.reply(self._library.edition, (view, wanted), make)

    def suggestions(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/suggest: titles that complete a text."""
        text = query.suggest_text(req.query_string)

        def make() -> Reply:
            suggested = [{"text": each.text, "slug": each.slug} for each in self._library.suggest(text).found]
            return Reply(encoded({"suggestions": suggested}))

        return self._cache.reply(self._library.edition, ("suggestions", text), make)

    def facets(self, _req: falcon.Request) -> Reply:
        """Return the answer of GET /api/facets: what templates are classified by, with counts."""
        return self._cache.reply(self._library.edition, "facets", lambda: Reply(encoded(self._library.facets())))

    def template(self, _req: falcon.Request, id_or_slug: str) -> Reply:
        """Return the answer of GET /api/templates/{idOrSlug}: one template with the latest cells of its notebooks.

        Raises:
            TemplateNotFoundError: no published template has this id or slug.
        """

        def make() -> Reply:
            template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
            if template is None:
                shown = id_or_slug[:_SHOWN_LENGTH]
                raise TemplateNotFoundError(f'No published template has the id or slug "{shown}"')
            return Reply(encoded(template_view(template, self._base_url)))

        return self._cache.reply(self._library.edition, ("template", id_or_slug), make)


class Search(Get):
    """GET and POST /api/search."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers.searched)
        self._answers = answers

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the results for the query in the JSON body."""
        wanted = query.body_query(_json_body(req))
        path = query.SEARCH_PATH if wanted.text else None
        send_whole(req, resp, self._answers.found(wanted, search_view, path))


class Health:
    """GET /health."""

    def __init__(self, library: TemplateLibrary) -> None:
        self._library = library

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Send 200 when the library's database can be read."""
        self._library.check()
        resp.set_header("Cache-Control", "no-store")
        resp.content_type = JSON
        resp.data = encoded({"status": "ok"})

    on_head = on_get


def _json_body(req: falcon.Request) -> bytes:
    """Return the body; refuse what is not plain JSON of at most 64 KiB. Decision: so is a missing Content-Type."""
    media_type = (req.content_type or "").partition(";")[0].strip().lower()
    if media_type != JSON:
        shown = f"The media type {media_type[:_SHOWN_LENGTH]!r} is not supported"
        raise UnsupportedMediaTypeError(shown if media_type else "Content-Type is missing")
    coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaTypeError(f"The content coding {coding[:_SHOWN_LENGTH]!r} is not supported")
    body: bytes = req.bounded_stream.read(query.MAX_BODY_BYTES + 1)
    if len(body) > query.MAX_BODY_BYTES or (req.content_length or 0) > query.MAX_BODY_BYTES:
        raise PayloadTooLargeError(f"The body is larger than {query.MAX_BODY_BYTES} bytes")
    return body


def list_view(found: Iterable[Found], base_url: str) -> dict[str, Any]:
    """Return the answer of GET /api/templates: summaries, without the markdown body."""
    return {"results": [_summary(each.summary, base_url) for each in found]}


def search_view(found: Iterable[Found], base_url: str) -> dict[str, Any]:
    """Return the answer of a search: summaries with `content`, `score` and `matched`."""
    return {
        "results": [
            {
                **_summary(each.summary, base_url),
                "content": each.summary.content,
                "score": round(each.score, 6),
                "matched": [_word(word) for word in each.matched],
            }
            for each in found
        ]
    }


def _word(word: Word) -> str | dict[str, Any]:
    if word.typed == word.found:
        return word.typed
    return {"typed": word.typed, "found": word.found, **({"synonym": True} if word.is_synonym else {})}


def template_view(template: Template, base_url: str) -> dict[str, Any]:
    """Return the answer of GET /api/templates/{idOrSlug}."""
    summary = template.summary
    members = _summary(summary, base_url)
    # The specification's table of the template names every member but this one of the summary's.
    del members["broker_version"]
    members["content"] = summary.content
    members["notebooks"] = [
        {
            "filename": notebook.filename,
            "version": notebook.version,
            "is_primary": notebook.is_primary,
            "cells": msgspec.Raw(notebook.cells.encode()),
            **({} if notebook.role is None else {"role": notebook.role}),
        }
        for notebook in template.notebooks
    ]
    return {"template": members}


def _summary(summary: Summary, base_url: str) -> dict[str, Any]:
    members: dict[str, Any] = {
        "id": summary.id,
        "slug": summary.slug,
        "title": summary.title,
        "short_description": summary.short_description,
        "url": summary.url or f"{base_url}/api/templates/{summary.slug or summary.id}",
        "category": summary.category,
        "tags": summary.tags,
        "routes": summary.routes,
        "broker_version": summary.broker_version,
    }
    if summary.difficulty is not None:
        members["difficulty"] = summary.difficulty
    return members
