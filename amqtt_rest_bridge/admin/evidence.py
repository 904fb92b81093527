"""What is kept of a call or request beside its message: what was sent and answered, without secrets. Pure."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.admin.runs import LONGEST_URL
from amqtt_rest_bridge.engine.failures import masker_for
from amqtt_rest_bridge.engine.needs import CallRun, RequestRun
from amqtt_rest_bridge.engine.requests import scheme_of_sender
from amqtt_rest_bridge.http.exchange import path_of
from amqtt_rest_bridge.lot.masking import NO_SECRETS, Masker, credentials_of, masker_of
from amqtt_rest_bridge.lot.model import Try
from amqtt_rest_bridge.secret_search import MASK

SHOWN_BYTES: Final = 16 << 10
"""Bytes of a payload or body that are shown."""
MASKED_BYTES: Final = 4 * SHOWN_BYTES
"""Bytes of it that are looked through for secrets: a secret that begins in the shown part may end behind it."""


class ShownBody(Struct, frozen=True, array_like=True):
    """A body without secrets, cut at `SHOWN_BYTES`; `size` is that of the whole."""

    data: bytes
    size: int


class Evidence(Struct, frozen=True, array_like=True):
    """What is kept of a call or request beside its message; no secrets of the route or of the request.

    `payload` is the message's as it may be shown, None where it had been let go; `carries` is whether that message
    brought credentials. `headers` and `body` are the request's as it was sent, `response` is None where none
    came. `url` is None where nothing was sent; of a request of server mode it is the path. `together` is how many
    messages the request was for, 0 for an event without BATCH_SIZE.
    """

    hint: str | None
    url: str | None
    tries: int
    attempts: list[Try]
    payload: ShownBody | None
    carries: bool = False
    headers: list[tuple[str, str]] = []
    body: ShownBody | None = None
    response: "ShownResponse | None" = None
    together: int = 0


class ShownResponse(Struct, frozen=True, array_like=True):
    """A response without secrets."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: ShownBody


def call_evidence(run: CallRun) -> Evidence:
    """Return what is kept of a call beside its message, without secrets."""
    own, request, response = masker_of(run.route), run.request, run.response
    masker = masker_for(own, request, response)
    carried = frozenset() if request is None else credentials_of(request.headers, request.url)
    carries = any(own.text(one) == one for one in carried)
    url, headers, body, received = None, [], None, None
    if request is not None:
        url = masker.address(request.url)[:LONGEST_URL]
        headers = _shown_headers(masker, request.headers)
        if scheme := scheme_of_sender(run.route.config, request):
            headers.append(("Authorization", f"{scheme} {MASK}"))
        body = None if request.body is None else shown_body(masker, request.body)
    if response is not None:
        shown = _shown_headers(masker, response.headers)
        reason = masker.text(response.reason)[:LONGEST_URL]
        received = ShownResponse(response.status, reason, shown, shown_body(masker, response.body))
    hint = None if run.failure is None else run.failure.hint
    payload = shown_body(masker, run.message.payload)
    return Evidence(
        hint, url, run.attempted, list(run.attempts), payload, carries, headers, body, received,
        run.together if run.event.batch_size is not None else 0,
    )  # fmt: skip


def request_evidence(run: RequestRun, first: Evidence | None) -> Evidence:
    """Return what is kept of a request beside its message, without secrets.

    `first` is that of the run whose message this one sends again: it has what the request brought.
    """
    if run.retry_of is not None:
        payload = None if first is None else first.payload
        return Evidence(None if run.refusal is None else run.refusal.hint, None, 1, [], payload, carries=True)
    request, answer, publication, event = run.request, run.answer, run.publication, run.event
    headers = list(request.headers.items())
    carried = credentials_of(headers, request.target)
    if event is not None and event.signature is not None:
        carried |= {request.headers.get(event.signature.header.lower(), "")}
    masker = (NO_SECRETS if run.route is None else masker_of(run.route)).including(carried)
    status, _, reason = answer.status.partition(" ")
    return Evidence(
        None if run.refusal is None else run.refusal.hint,
        masker.address(path_of(request.target)),
        1,
        [],
        None if publication is None else shown_body(masker, publication.payload),
        False,
        _shown_headers(masker, headers),
        shown_body(masker, request.body) if request.body else None,
        ShownResponse(int(status), reason, _shown_headers(masker, answer.headers), shown_body(masker, answer.body)),
    )


def _shown_headers(masker: Masker, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers as they are shown, up to `SHOWN_BYTES` together."""
    shown: list[tuple[str, str]] = []
    left = SHOWN_BYTES
    for name, value in headers:
        left -= len(name) + len(value)
        if left < 0:
            break
        shown.append((masker.text(name), masker.header(name, value)))
    return shown


def shown_body(masker: Masker, body: bytes, size: int | None = None) -> ShownBody:
    """Return what is shown of a body whose first `MASKED_BYTES` are given at least; `size` is that of the whole.

    It is masked before it is cut, and of a large one the end of what was looked through is left out, where a part of a
    secret may be.
    """
    masked = masker.body(body[:MASKED_BYTES], shown=True)
    most = SHOWN_BYTES if len(body) < MASKED_BYTES else max(0, len(masked) - MASKED_BYTES + SHOWN_BYTES)
    return ShownBody(masked[: min(most, SHOWN_BYTES)], len(body) if size is None else size)
