"""Each call and each request has an id, the same in log, stream, records, pages and failure payload."""

import http.client
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.lot.model import RunIds
from tests.support.admin_client import Events, admin_of, client_route, server_route
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="amqtt_rest_bridge")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line for line in caplog.messages if text in line]


def record_of(events: Events) -> dict[str, Any]:
    """Wait for the next record of a call or a request."""
    while (record := events.record())["kind"] == "message":  # such as the failure payload
        pass
    return record


@pytest.mark.parametrize("processes", [0, 1])
def test_a_call_has_one_id_in_log_stream_records_page_and_failure_payload(
    target: Recorder, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    target.answer = lambda _: (503, b"no")
    route = client_route(target.url, config="WITH RETRIES 1")
    with hosting(route, admin_port=0, processes=processes) as host:
        client, admin = host.client("done/#"), admin_of(host)
        with admin.live() as events:
            events.begin(client)
            client.publish("orders/1", b"1")
            failure = json.loads(client.message()[1])
            live = [record_of(events), record_of(events)]
        (call,) = admin.calls("Orders")
        assert str(uuid.UUID(call["id"])) == call["id"] == failure["id"]
        assert [(one["kind"], one["id"]) for one in live] == [("retry", call["id"]), ("call", call["id"])]
        assert f'data-run="{call["id"]}"' in admin.get("/routes/Orders").text
        eventually(lambda: lines(caplog, f"run {call['id']}: the server answered 503"))


def test_the_line_of_a_call_that_succeeds_and_of_a_message_that_is_refused_has_its_id(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with hosting(client_route(target.url), admin_port=0, max_message_bytes=10) as host:
        client = host.client("done/#")
        client.publish("orders/1", b"1")
        client.message()
        client.publish("orders/1", b"more than 10 bytes")
        failure = json.loads(client.message()[1])
        refused, call = admin_of(host).calls("Orders")
        assert (refused["kind"], refused["id"]) == ("refused", failure["id"])
        for text, end in (
            ("answered 200 in", f", message on orders/1, run {call['id']}"),
            ("refused a message", f", run {refused['id']}"),
        ):
            (line,) = lines(caplog, text)
            assert line.endswith(end)


def test_the_id_of_a_request_is_its_request_id(caplog: pytest.LogCaptureFixture) -> None:
    with hosting(server_route(), admin_port=0) as host:
        connection = http.client.HTTPConnection("127.0.0.1", host.http_port)
        admin = admin_of(host)
        with admin.live() as events:
            events.begin(host.client())
            for path in ("/hook", "/nowhere"):
                connection.request("POST", path, b"1")
                answer = connection.getresponse()
                answer.read()
                assert record_of(events)["id"] == answer.headers["X-Request-ID"]
        connection.close()
        (request,) = admin.calls("Intake")
        eventually(lambda: lines(caplog, f"answered POST /hook with 200, run {request['id']}"))


def test_the_id_of_a_lossless_call_is_its_idempotency_key_over_retries_and_a_restart(
    target: Recorder, tmp_path: Path
) -> None:
    target.answer = lambda _: (503, b"no")
    route = client_route(target.url, more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    spool = str(tmp_path / "spool.db")
    with hosting(route, admin_port=0, spool=spool) as host:
        host.client().publish("orders/1", b"1")
        key = target.request().headers["idempotency-key"]
        page = admin_of(host)
        eventually(lambda: f'data-run="{key}"' in page.get("/routes/Orders").text)
    target.answer = lambda _: (200, b"yes")
    with hosting(route, admin_port=0, spool=spool) as host:
        admin = admin_of(host)
        eventually(lambda: admin.calls("Orders"))
        assert [one["id"] for one in admin.calls("Orders")] == [key]


def test_ids_are_uuids_of_their_process_or_of_a_publishers_key_and_event() -> None:
    ids, others = RunIds(), RunIds()
    one = ids.of(1, "R", "A")
    assert str(uuid.UUID(one)) == one
    assert len({one, ids.of(2, "R", "A"), others.of(1, "R", "A")}) == 3
    ids, others = RunIds(unique_keys=False), RunIds(unique_keys=False)
    one = ids.of("order-17", "R", "A")
    assert str(uuid.UUID(one)) == one == others.of("order-17", "R", "A")
    assert len({one, ids.of("order-17", "R", "B"), ids.of("order-18", "R", "A")}) == 3
