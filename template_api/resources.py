"""One Falcon resource for each path. They run on the server's threads and may be entered by several at once."""

import falcon

from template_api import openapi, query, views
from template_api.errors import PayloadTooLargeError, TemplateNotFoundError, UnsupportedMediaTypeError
from template_api.library import TemplateLibrary
from template_api.query import TemplateQuery
from template_api.replies import JSON, Reply, ReplyCache, encoded, send, send_whole

MAX_BODY_BYTES = 65536
_SHOWN_LENGTH = 80


class Answers:
    """The answers of the API, from the library or its cache.

    Args:
        library: what is read.
        base_url: the public address of this API, without a trailing slash.
    """

    def __init__(self, library: TemplateLibrary, base_url: str) -> None:
        self.library = library
        self._base_url = base_url
        self._cache = ReplyCache()

    def summaries(self, wanted: TemplateQuery) -> Reply:
        """Return the summaries of the templates that match a query."""
        return self._cache.reply(
            self.library.version,
            ("summaries", wanted),
            lambda: views.list_view(self.library.find(wanted), self._base_url),
        )

    def results(self, wanted: TemplateQuery) -> Reply:
        """Return search results for a query."""
        return self._cache.reply(
            self.library.version,
            ("results", wanted),
            lambda: views.search_view(self.library.find(wanted), self._base_url),
        )

    def template(self, id_or_slug: str) -> Reply:
        """Return one template.

        Raises:
            TemplateNotFoundError: no published template has this id or slug.
        """
        return self._cache.reply(self.library.version, ("template", id_or_slug), lambda: self._template(id_or_slug))

    def _template(self, id_or_slug: str) -> object:
        template = self.library.get(id_or_slug) if id_or_slug.isprintable() else None
        if template is None:
            shown = id_or_slug[:_SHOWN_LENGTH]
            raise TemplateNotFoundError(f'No published template has the id or slug "{shown}"')
        return views.template_view(template, self._base_url)


class Templates:
    """GET /api/templates: list or search templates."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the templates that match the query parameters."""
        send(req, resp, self._answers.summaries(query.list_query(req.query_string)))

    on_head = on_get


class OneTemplate:
    """GET /api/templates/{idOrSlug}: read one template."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def on_get(self, req: falcon.Request, resp: falcon.Response, id_or_slug: str) -> None:
        """Send the template with the latest cells of its notebooks."""
        send(req, resp, self._answers.template(id_or_slug))

    on_head = on_get


class Search:
    """GET and POST /api/search."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the results for the query parameters."""
        send(req, resp, self._answers.results(query.search_query(req.query_string)))

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the results for the query in the JSON body."""
        _check_media_type(req)
        send_whole(req, resp, self._answers.results(query.body_query(_body(req))))


class Description:
    """GET /openapi.json."""

    def __init__(self) -> None:
        self._reply = Reply(openapi.description_text())

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the OpenAPI description."""
        send(req, resp, self._reply)

    on_head = on_get


class Health:
    """GET /health."""

    def __init__(self, answers: Answers) -> None:
        self._library = answers.library

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Send 200 when the library's database can be read."""
        self._library.check()
        resp.set_header("Cache-Control", "no-store")
        resp.content_type = JSON
        resp.data = encoded({"status": "ok"})

    on_head = on_get


def _check_media_type(req: falcon.Request) -> None:
    """Refuse what is not plain JSON. Decision: a missing Content-Type is refused too."""
    media_type = (req.content_type or "").partition(";")[0].strip().lower()
    if media_type != JSON:
        shown = f"The media type {media_type[:_SHOWN_LENGTH]!r} is not supported"
        raise UnsupportedMediaTypeError(shown if media_type else "Content-Type is missing")
    coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaTypeError(f"The content coding {coding[:_SHOWN_LENGTH]!r} is not supported")


def _body(req: falcon.Request) -> bytes:
    body: bytes = req.bounded_stream.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES or (req.content_length or 0) > MAX_BODY_BYTES:
        raise PayloadTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes")
    return body
