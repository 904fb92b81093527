"""`rest-bridge worker --probe`: what a broker lacks is named with what to do, and nothing is left behind."""

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.group import probe as tried
from amqtt_rest_bridge.group.probe import ProbeFinding, probe
from amqtt_rest_bridge.mqtt.values import Address
from amqtt_rest_bridge.settings import Coreflux, WorkerSettings
from tests.support import forked
from tests.support.route_text import load_text
from tests.support.waiting import eventually
from tests.worker.fake_broker import FakeBroker
from tests.worker.mosquitto import CONFIGURATION, Mosquitto
from tests.worker.workers import client_route

NAMES = [check.name for check in tried._CHECKS]
COMMANDS = NAMES[-1]
FOLLOWING = {"MQTT 5": NAMES[1:], "topics of the group": NAMES[2:]}  # what cannot be tried without


def address(port: int) -> Address:
    return Address("127.0.0.1", port, None, None, None, f"mqtt://127.0.0.1:{port}")


def found(port: int) -> list[ProbeFinding]:
    """Try a broker that answers at once."""
    routes = load_text(client_route("Echo", 9, "in/+")).routes
    live = Coreflux(["editor"], "live")
    return asyncio.run(probe(address(port), WorkerSettings(group="plant", coreflux=live), routes))


def is_empty(broker: FakeBroker) -> bool:
    return (broker.sessions, broker.retained) == ({}, {})


def lacking(findings: list[ProbeFinding]) -> dict[str, ProbeFinding]:
    return {one.name: one for one in findings if one.holds is False}


def test_a_broker_that_has_everything_lacks_nothing_and_is_left_as_it_was() -> None:
    with FakeBroker() as broker:
        findings = found(broker.port)
        assert [one.name for one in findings] == [*NAMES, "DESTINATION_TOPICs"]
        assert all(one.holds and not one.hint for one in findings[:-1]), findings
        assert findings[-1] == ProbeFinding("DESTINATION_TOPICs", None, "not tried: results/Echo")
        eventually(partial(is_empty, broker))


OTHERS = ("a queue", "patience")
Probed = Mapping[str, tuple[FakeBroker, list[ProbeFinding]]]


@pytest.fixture(scope="module")
def probed() -> Iterator[Probed]:
    """Try brokers that lack one thing each, some at the same time, since each makes the probe wait."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        patch.setattr(tried, "WAIT_SECONDS", 2.0)  # half a second was too little for a starved machine
        brokers = {name: stack.enter_context(FakeBroker(name)) for name in (*NAMES, *OTHERS)}
        findings = pool.map(found, [broker.port for broker in brokers.values()])
        yield {name: (brokers[name], one) for name, one in zip(brokers, findings, strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_broker_lacks_is_named_with_what_to_do_and_nothing_is_left(name: str, probed: Probed) -> None:
    broker, findings = probed[name]
    assert lacking(findings).keys() == {name} | ({"redelivery"} if name == "kept sessions" else set())
    assert all(bool(one.hint) is (one.holds is False) for one in findings)
    untried = [one.name for one in findings[:-1] if one.holds is None]
    assert untried == FOLLOWING.get(name, [])
    eventually(partial(is_empty, broker))


@pytest.mark.parametrize(
    ("broker", "name", "detail"),
    [
        pytest.param("a queue", "Receive Maximum", "the next message, once one was acknowledged, does not", id="drops"),
        pytest.param("patience", "kept sessions", "not acknowledge a message on .*: the connection was", id="ends"),
    ],
)
def test_what_a_broker_does_to_one_check_is_reported_there_and_the_others_are_tried(
    broker: str, name: str, detail: str, probed: Probed
) -> None:
    ((found, finding),) = lacking(probed[broker][1]).items()
    assert found == name and re.search(detail, finding.detail)


def test_what_is_known_of_an_old_mosquitto_is_said_of_receive_maximum(
    probed: Probed,
) -> None:
    assert lacking(probed["Receive Maximum"][1])["Receive Maximum"].hint.startswith(
        "known of Mosquitto 2.0.11: after a lost connection some calls may run twice."
    )


def test_a_probe_that_is_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeBroker("redelivery") as broker:  # which is waited for

        async def interrupted() -> None:
            probing = asyncio.ensure_future(probe(address(broker.port), WorkerSettings(group="plant"), ()))
            while not any("again" in client_id for client_id in broker.sessions):
                await asyncio.sleep(0.001)
            probing.cancel()
            await asyncio.wait([probing])
            assert probing.cancelled()

        asyncio.run(interrupted())
        eventually(partial(is_empty, broker))


def test_a_broker_that_is_not_there_is_the_first_finding(unused_port: int) -> None:
    first, *others = found(unused_port)
    assert (first.holds, first.detail) == (
        False, f"cannot reach the broker mqtt://127.0.0.1:{unused_port}: Connection refused; is the broker running?",
    )  # fmt: skip
    assert not any(one.holds for one in others)


def run(folder: Path, broker: str, *arguments: str, **settings: Any) -> "subprocess.CompletedProcess[str]":
    (folder / "a.lot").write_text(client_route("Echo", 9, "in"))
    path = folder / "worker.yaml"
    path.write_text(json.dumps({"broker": broker, "group": "plant", "routes": str(folder), **settings}))
    constants = {"amqtt_rest_bridge.group.probe.WAIT_SECONDS": 2}
    return forked.run(
        forked.REST_BRIDGE, ["worker", "-c", str(path), "--probe", *arguments], folder, constants=constants
    )


@pytest.mark.mosquitto
def test_mosquitto_has_everything_and_the_workers_beside_notice_nothing(mosquitto: Mosquitto, tmp_path: Path) -> None:
    others = mosquitto.client("other").subscribe("$share/plant/in", "bridge/plant/+/lease")
    ended = run(tmp_path, mosquitto.url)
    missing = [line for line in ended.stdout.splitlines() if line.startswith("  NO ")]
    assert all("Receive Maximum" in line for line in missing), ended.stdout  # 2.0.11 sends more now and then
    assert (ended.returncode, ended.stderr) == (len(missing), "")
    assert ended.stdout.startswith(f"{mosquitto.url} for the workers of group plant:\n  yes  MQTT 5  ")
    assert missing or ended.stdout.endswith("all that workers need is there\n")
    mosquitto.client().publish("in", b"for the other")
    assert others.next() == ("in", b"for the other")
    late = mosquitto.client().subscribe("bridge/#", "in")
    mosquitto.client().publish("in", b"nothing was retained")
    assert late.next() == ("in", b"nothing was retained")


@pytest.mark.mosquitto
def test_the_limits_of_mosquitto_as_it_comes_are_found(tmp_path: Path) -> None:
    limits = CONFIGURATION.replace("max_queued_messages 0\n", "")
    with Mosquitto(tmp_path, "max_packet_size 100000\n", limits) as broker:
        live = {"users": ["editor"], "routes": str(tmp_path / "live")}
        ended = run(tmp_path, broker.url, "--json", coreflux=live)
        assert ended.returncode == 1
        findings = {one["name"]: one for one in json.loads(ended.stdout)["checks"]}
    missing = {name for name, one in findings.items() if one["holds"] is False}
    assert missing - {"Receive Maximum"} == {"kept sessions", "large messages", COMMANDS}
    assert "of 1100 messages for a session that was away 1000 came" in findings["kept sessions"]["detail"]
    assert "max_queued_messages 0" in findings["kept sessions"]["hint"]
    refused = r"the broker refuses a message on \$SYS/Coreflux/Routes/probe-\w+: Not authorized"
    assert re.fullmatch(refused, findings[COMMANDS]["detail"])
    assert (
        findings["large messages"]["detail"] == "the broker takes packets of 100000 bytes; max_response_bytes is 262144"
    )


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("rule", "detail"),
    [
        pytest.param("topic read bridge/plant/#", "the broker refuses a message on bridge/plant/probe/", id="publish"),
        pytest.param("topic write bridge/plant/#", "what was published on bridge/plant/probe/", id="subscribe"),
    ],
)
def test_an_acl_without_the_topics_of_the_group_is_found(tmp_path: Path, rule: str, detail: str) -> None:
    (tmp_path / "acl").write_text(f"{rule}\n")
    with Mosquitto(tmp_path, f"acl_file {tmp_path}/acl\n") as broker:
        ended = run(tmp_path, broker.url)
    assert ended.returncode == 1
    assert f"  NO   topics of the group       {detail}" in ended.stdout
    assert "to do: allow the user of the workers to publish and subscribe bridge/<group>/#" in ended.stdout
    assert ended.stdout.endswith("1 thing that workers need is lacking\n")
