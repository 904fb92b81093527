"""The alert rules and the dashboard of conf/, judged by promtool and by a Prometheus that reads a running bridge."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.support.admin_client import admin_of, client_route, server_route
from tests.support.documents import ROOT, blocks, page, section
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.ports import free_port
from tests.support.waiting import SECONDS, eventually

CONF: Final = ROOT / "conf"
ALERTS: Final = CONF / "prometheus-alerts.yaml"
CASES: Final = Path(__file__).with_name("prometheus_alerts.test.yaml")
DASHBOARD: Final[dict[str, Any]] = json.loads((CONF / "grafana-dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
EXPRESSIONS: Final = [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
OF_WORKERS: Final = {
    "rest_bridge_slot_held", "rest_bridge_unacknowledged", "rest_bridge_redelivered_total", "rest_bridge_route_sets",
    "rest_bridge_reconnects_total", "rest_bridge_lease_changes_total",
}  # fmt: skip
"""Metrics that a bridge beside amqtt does not have."""
BREAKER: Final = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH BREAKER "5 per 30s"'
STREAM: Final = """DEFINE ROUTE Live WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT One WITH METHOD "GET" WITH ENDPOINT "/live" WITH SOURCE_TOPIC "live" WITH STREAM "true"
"""


def configuration() -> dict[str, Any]:
    """Return the configuration that the documents show."""
    (text,) = blocks(section(page("amqtt_rest_bridge/admin/README.md"), "Metrics"), "yaml")
    given: dict[str, Any] = yaml.safe_load(text)
    return given


class Prometheus:
    """Asks one Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer."""
        with urlopen(f"http://127.0.0.1:{self._port}{path}?{urlencode(query)}", timeout=20) as response:
            answer = json.load(response)
        assert answer["status"] == "success"
        return answer["data"]

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=20) as response:
                return bool(response.status == 200)
        except URLError:
            return False

    def values(self, expression: str) -> dict[str, float]:
        """Return what an expression of the dashboard yields now, by its route ("" without one)."""
        text = expression.replace("$__rate_interval", "5s").replace("$route", ".*")
        found = self.ask("/api/v1/query", query=text)["result"]
        return {one["metric"].get("route", ""): float(one["value"][1]) for one in found}


@contextmanager
def reading(host: Host, folder: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with the documents' configuration, four times a second, until the block ends."""
    given, port = configuration(), free_port()
    given["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    given["rule_files"] = [str(ALERTS)]
    (job,) = given["scrape_configs"]
    job |= {"scrape_interval": "250ms", "scrape_timeout": "250ms"}
    job["static_configs"] = [{"targets": [f"127.0.0.1:{admin_of(host).port}"]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(given))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=error"]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder)
    try:
        prometheus = Prometheus(port)
        eventually(prometheus.ready)
        yield prometheus
    finally:
        process.terminate()
        process.wait(SECONDS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    found = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_has_a_test() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    cases = yaml.safe_load(CASES.read_text())["tests"]
    firing = {test["alertname"] for case in cases for test in case["alert_rule_test"] if "exp_alerts" in test}
    quiet = {test["alertname"] for case in cases for test in case["alert_rule_test"] if "exp_alerts" not in test}
    assert firing == quiet == {rule["alert"] for rule in rules}


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_every_expression_of_the_dashboard_yields_what_a_running_bridge_did(tmp_path: Path) -> None:
    """The bridge has routes that succeed, always fail, are on disk with a breaker, and of server mode, one a stream."""

    def answer(seen: Seen) -> tuple[int, bytes]:
        return (404 if "bad" in seen.path else 200), b""

    with recording() as target:
        target.answer = answer
        bad = client_route(target.url, name="Bad", config='WITH RETRIES "0"').replace("orders/+", "bad/+")
        kept = client_route(target.url, name="Kept", more=BREAKER)
        routes = [client_route(target.url), bad.replace("/new/", "/bad/"), kept.replace("orders/+", "kept/+")]
        files = "".join([*routes, server_route(), STREAM])
        with hosting(files, admin_port=0, spool=str(tmp_path / "spool.db")) as host, reading(host, tmp_path) as asked:
            client = host.client()

            def values() -> dict[str, dict[str, float]]:
                for topic in ("orders/1", "bad/1", "kept/1"):
                    client.publish(topic, b"{}")
                with urlopen(f"http://127.0.0.1:{host.http_port}/hook", data=b"{}") as response:
                    assert response.status == 200
                with pytest.raises(HTTPError) as unmatched:
                    urlopen(f"http://127.0.0.1:{host.http_port}/nowhere", data=b"{}")
                unmatched.value.close()
                beside_amqtt = [
                    each for each in EXPRESSIONS if not OF_WORKERS & {*re.findall(r"\w+", str(each.values[0]))}
                ]
                return {str(each.id): asked.values(str(each.values[0])) for each in beside_amqtt}

            found: dict[str, dict[str, float]] = {}

            def all_yield() -> bool:
                found.update(values())
                measured = [value for one in found.values() for value in one.values()]
                return all(found.values()) and all(value == value for value in measured) and "Bad" in shares()

            def shares() -> dict[str, float]:
                return found["Share of failed calls, A"]

            eventually(all_yield, pause_seconds=0.2)  # it reads four times a second
            assert shares() == {"Orders": 0, "Bad": 1, "Kept": 0}
            assert found["Ready, A"] == {"": 1}
            assert found["Errors of the last reload, A"] == {"": 0}
            assert found["Target down (BREAKER open), A"] == {"Kept": 0}
            assert found["Readers of streams, A"] == {"Live": 0}
            assert set(found["Requests per second (server mode), A"]) == {"Intake"}
            requests = "Share of requests refused (4xx) and failed (5xx), server mode"
            assert [found[f"{requests}, {kind}"] for kind in "AB"] == [{"Intake": 0}, {"Intake": 0}]
            assert 0 < found["Duration of a request (server mode), A"]["Intake"] < 30
            assert 0 < found["Duration of a call, A"]["Orders"] <= found["Duration of a call, B"]["Orders"] < 30
            (group,) = asked.ask("/api/v1/rules")["groups"]
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            eventually(lambda: all(rule["health"] == "ok" for rule in asked.ask("/api/v1/rules")["groups"][0]["rules"]))
            variable = DASHBOARD["templating"]["list"][1]["definition"]
            assert variable == "label_values(rest_bridge_queued, route)"
            names = asked.ask("/api/v1/label/route/values", **{"match[]": "rest_bridge_queued"})
            assert names == ["Bad", "Intake", "Kept", "Live", "Orders"]


def test_the_dashboards_panels_fit_into_grafanas_grid_and_use_its_variables() -> None:
    assert 8 <= len(DASHBOARD["uid"]) <= 40
    assert {one["type"] for one in DASHBOARD["templating"]["list"]} <= {"datasource", "query"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] in ("stat", "timeseries")
        source = {"type": "prometheus", "uid": "${datasource}"}
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])].count(source) >= 2
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
        assert steps[0]["value"] is None  # minus infinity
        for target in panel["targets"]:
            assert set(re.findall(r"\$\w+", target["expr"])) <= {"$route", "$__rate_interval"}
