"""The evidence of a call or request: what is kept beside its message, without secrets. Pure.

`recorder` has it made of runs that are kept; the page of a run shows it.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.admin.runs import LONGEST_URL
from amqtt_rest_bridge.engine.failures import masker_for
from amqtt_rest_bridge.engine.needs import CallRun, RequestRun
from amqtt_rest_bridge.engine.requests import added_scheme
from amqtt_rest_bridge.http.exchange import path_of
from amqtt_rest_bridge.lot.masking import NO_SECRETS, Masker, credentials_of, masker_of
from amqtt_rest_bridge.lot.model import Try
from amqtt_rest_bridge.lot.secret_search import MASK

SHOWN_BYTES: Final = 16 << 10
"""Bytes of a payload or body that are shown."""
MASKED_BYTES: Final = 4 * SHOWN_BYTES
"""Bytes of it that are searched for secrets: a secret may begin in the shown part and end after it."""


class MaskedBody(Struct, frozen=True, array_like=True):
    """A body without secrets, cut at `SHOWN_BYTES`; `size` is that of the whole."""

    data: bytes
    size: int


class Evidence(Struct, frozen=True, array_like=True):
    """What is kept of a call or request beside its message, without secrets of the route or of the request.

    `payload` is the masked payload of the message, None if it was released early; `has_credentials` says whether the
    message brought credentials. `url`, `headers` and `body` are those of the request as it was sent; `url` is the path
    for a request of server mode, None if nothing was sent. `response` is None if none came. `together` is the number of
    messages in the request, 0 for an event without BATCH_SIZE.
    """

    hint: str | None
    url: str | None
    tries: int
    attempts: list[Try]
    payload: MaskedBody | None
    has_credentials: bool = False
    headers: list[tuple[str, str]] = []
    body: MaskedBody | None = None
    response: "MaskedResponse | None" = None
    together: int = 0


class MaskedResponse(Struct, frozen=True, array_like=True):
    """A response without secrets."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: MaskedBody


def call_evidence(run: CallRun) -> Evidence:
    """Return what is kept of a call beside its message, without secrets."""
    own, request, response = masker_of(run.route), run.request, run.response
    masker = masker_for(own, request, response)
    carried = frozenset() if request is None else credentials_of(request.headers, request.url)
    has_credentials = any(own.text(one) == one for one in carried)
    url, headers, body, received = None, [], None, None
    if request is not None:
        url = masker.address(request.url)[:LONGEST_URL]
        headers = _masked_headers(masker, request.headers)
        if scheme := added_scheme(run.route.config, request):
            headers.append(("Authorization", f"{scheme} {MASK}"))
        body = None if request.body is None else masked_body(masker, request.body)
    if response is not None:
        shown = _masked_headers(masker, response.headers)
        reason = masker.text(response.reason)[:LONGEST_URL]
        received = MaskedResponse(response.status, reason, shown, masked_body(masker, response.body))
    hint = None if run.failure is None else run.failure.hint
    payload = masked_body(masker, run.message.payload)
    return Evidence(
        hint=hint,
        url=url,
        tries=run.attempted,
        attempts=list(run.attempts),
        payload=payload,
        has_credentials=has_credentials,
        headers=headers,
        body=body,
        response=received,
        together=run.together if run.event.batch_size is not None else 0,
    )


def request_evidence(run: RequestRun, original: Evidence | None) -> Evidence:
    """Return what is kept of a request beside its message, without secrets.

    `original` is the evidence of the run that this one retries. Only that run has seen the request of the caller.
    """
    if run.retry_of is not None:
        payload = None if original is None else original.payload
        return Evidence(None if run.refusal is None else run.refusal.hint, None, 1, [], payload, has_credentials=True)
    request, answer, publication, event = run.request, run.answer, run.publication, run.event
    headers = list(request.headers.items())
    carried = credentials_of(headers, request.target)
    if event is not None and event.signature is not None:
        carried |= {request.headers.get(event.signature.header.lower(), "")}
    masker = (NO_SECRETS if run.route is None else masker_of(run.route)).including(carried)
    status, _, reason = answer.status.partition(" ")
    answer_headers, answer_body = _masked_headers(masker, answer.headers), masked_body(masker, answer.body)
    return Evidence(
        hint=None if run.refusal is None else run.refusal.hint,
        url=masker.address(path_of(request.target)),
        tries=1,
        attempts=[],
        payload=None if publication is None else masked_body(masker, publication.payload),
        headers=_masked_headers(masker, headers),
        body=masked_body(masker, request.body) if request.body else None,
        response=MaskedResponse(int(status), reason, answer_headers, answer_body),
    )


def _masked_headers(masker: Masker, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers as they are shown, up to `SHOWN_BYTES` together."""
    shown: list[tuple[str, str]] = []
    left = SHOWN_BYTES
    for name, value in headers:
        left -= len(name) + len(value)
        if left < 0:
            break
        shown.append((masker.text(name), masker.header(name, value)))
    return shown


def masked_body(masker: Masker, body: bytes, size: int | None = None) -> MaskedBody:
    """Return a body masked, then cut for display.

    `body` may be the first `MASKED_BYTES` of a larger one, whose size is then `size`. The end of the masked bytes of a
    large body is not shown: a secret may begin there that was not recognized, because its rest was not searched.
    """
    masked = masker.body(body[:MASKED_BYTES], shown=True)
    most = SHOWN_BYTES if len(body) < MASKED_BYTES else max(0, len(masked) - MASKED_BYTES + SHOWN_BYTES)
    return MaskedBody(masked[: min(most, SHOWN_BYTES)], len(body) if size is None else size)
