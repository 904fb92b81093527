"""From the library's values to the members of JSON answers (specification, "Resources and their fields"). Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec

from template_api.records import Found, Suggestion, Summary, Template


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
                "matched": [
                    word.typed if word.typed == word.found else {"typed": word.typed, "found": word.found}
                    for word in each.matched
                ],
            }
            for each in found
        ]
    }


def suggestions_view(suggestions: Iterable[Suggestion]) -> dict[str, Any]:
    """Return the answer of GET /api/suggest."""
    return {"suggestions": [{"text": each.text, "slug": each.slug} for each in suggestions]}


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
