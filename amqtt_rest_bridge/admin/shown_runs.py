"""One run with its message, request and response, as JSON and as its page shows it. Pure; any thread.

Secrets were masked by the bridge process that had the call. What none had is masked here, by the present definition of
its route; where that is gone, nothing of the payload is shown.
"""

from collections.abc import Mapping
from typing import Any, Final

from amqtt_rest_bridge.admin.shown_records import Runs
from amqtt_rest_bridge.failures import body_members
from amqtt_rest_bridge.link.admin_frames import Evidence, Record, RunDetail, ShownBody
from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.records.runs import run_members, shown_body
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import loggable

_PARTIAL: Final = 3  # bytes of a character that a cut may leave


def whole_run(runs: Runs, routes: Mapping[str, Route]) -> dict[str, Any]:
    """Return the one run that was found as the members of its JSON object."""
    (record,), detail = runs.newest(), runs.detail
    shown: dict[str, Any] = {"message": None, "request": None, "response": None}
    if detail is not None:
        shown["message"] = _message(record, detail, routes) if detail.topic else None  # a request may have had none
        if detail.evidence is not None:
            shown |= _exchange(record, detail.evidence)
    return run_members(record) | shown


def _message(record: Record, detail: RunDetail, routes: Mapping[str, Route]) -> dict[str, Any]:
    evidence, route = detail.evidence, routes.get(record.route or "")
    body = None if evidence is None else evidence.payload
    if detail.payload is not None and route is not None:
        body = shown_body(masker_of(route), detail.payload, detail.size)
    members: dict[str, Any] = {"topic": loggable(detail.topic), "time": rfc3339(detail.timestamp), "payload": None}
    if body is not None:
        shown = _body(body)
        members |= {"payload": shown.pop("body"), "payload_encoding": shown.pop("body_encoding"), **shown}
    return members | {"is_kept": detail.size is not None}


def _exchange(record: Record, evidence: Evidence) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if evidence.url is not None:
        body = {} if evidence.body is None else _body(evidence.body)
        shown["request"] = {"method": record.method, "url": evidence.url, "headers": evidence.headers, **body}
    response = evidence.response
    if response is not None:
        shown["response"] = {
            "status": response.status, "reason": response.reason, "headers": response.headers, **_body(response.body),
        }  # fmt: skip
    return shown


def _body(body: ShownBody) -> dict[str, Any]:
    """Return a body with its size, and whether it was cut; a character that the cut has split is left out."""
    data, is_cut = body.data, body.size > len(body.data)
    if is_cut:
        for left_out in range(_PARTIAL + 1):
            try:
                data = body.data[: len(body.data) - left_out]
                data.decode()
                break
            except UnicodeDecodeError:
                data = body.data
    return {**body_members(data), "size": body.size, "is_cut": is_cut}
