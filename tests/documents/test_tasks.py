"""The pages of tasks: each is short, and what it shows is what happens, on free ports."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.asking import ask
from tests.support.commands import Running
from tests.support.documents import FENCED, ROOT, blocks, page
from tests.support.ports import free_ports
from tests.support.waiting import eventually

TASKS: Final = ("first-route", "something-failed", "webhooks", "nothing-lost", "several-machines", "production")
PORTS: Final = ("1883", "8080", "9000", "9464")
BINARIES: Final = Path(sys.executable).parent
MOST_WORDS: Final = 1200


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_1200_words_at_most_and_is_on_the_first_page(name: str) -> None:
    assert len(page(f"conf/{name}.md").split()) <= MOST_WORDS
    assert f"](conf/{name}.md)" in page("README.md")


class Desk:
    """A folder in which a reader of the pages works, with a broker and the practice API of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        (folder / "my/routes").mkdir(parents=True)
        (folder / "my/secrets").mkdir()
        monkeypatch.chdir(folder)

    def text(self, written: str) -> str:
        """Return a text of a page with the ports of this desk."""
        return re.sub(r"\b(1883|8080|9000|9464)\b", lambda port: self.ports[port[0]], written)

    def write(self, name: str, written: str) -> Path:
        path = self.folder / name
        path.write_text(self.text(written), encoding="utf-8")
        return path

    def run(self, command: str) -> str:
        """Run a command of a page, and return what it prints, with the ports of the page."""
        words = shlex.split(self.text(command.removeprefix("$ ")))
        if words[0] == ".venv/bin/rest-bridge":
            main(words[1:])
            output = self._capsys.readouterr()
            printed = output.out + output.err
        else:
            printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        for shown, own in self.ports.items():
            printed = printed.replace(own, shown)
        return printed

    @contextmanager
    def practice_api(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        command = [sys.executable, str(ROOT / "conf/practice_api.py"), "--port", self.ports["9000"], *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout is not None
            assert started.stdout.readline().startswith("listening on")
            try:
                yield started
            finally:
                started.kill()

    @contextmanager
    def broker(self) -> Iterator[Running]:
        command = [str(BINARIES / "rest-bridge"), "serve", "-c", "my/broker.yaml"]
        running = Running(subprocess.Popen(command, cwd=self.folder, text=True, stderr=subprocess.PIPE))
        try:
            running.line("ready: MQTT on 127.0.0.1:")
            yield running
        finally:
            running.kill()

    def publish(self, topic: str, payload: str) -> None:
        url = self.text("mqtt://127.0.0.1:1883")
        command = [str(BINARIES / "amqtt_pub"), "--url", url, "-q", "1", "-t", topic, "-m", payload]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


def started_with_first_route(desk: Desk) -> None:
    """Write what the first page has its reader write."""
    text = page("conf/first-route.md")
    test, configuration = blocks(text, "yaml")
    desk.write("my/routes/meters.lot", blocks(text, "lot")[0])
    desk.write("my/routes/meters.test.yaml", test)
    desk.write("my/broker.yaml", configuration)


def follow(desk: Desk, text: str) -> None:
    """Run the commands that a page shows with their output, which ends early where the page says what comes below."""
    for language, shown in FENCED.findall(text):
        if language != "console":
            continue
        for part in re.split(r"^(?=\$ )", shown, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            assert desk.run(command).startswith(expected), command


def test_the_first_own_route_is_checked_tried_tested_and_run(desk: Desk) -> None:
    text = page("conf/first-route.md")
    started_with_first_route(desk)
    follow(desk, text)
    with desk.practice_api() as api, desk.broker() as broker:
        assert api.stdout is not None
        desk.publish("meters/m-12/reading", '{"kwh": 17.5}')
        assert api.stdout.readline().startswith("201 POST /readings/m-12 ")
        broker.line("route Meters, event Send: POST http://127.0.0.1:")
        route = desk.folder / "my/routes/meters.lot"
        line = '        WITH METHOD "POST"\n'
        route.write_text(route.read_text().replace(line, line + blocks(text, "lot")[1]))
        broker.line("routes reloaded: 1 route(s); changed Meters")
        desk.publish("meters/m-12/reading", '{"kwh": 0}')
        eventually(lambda: "skipped" in ask(int(desk.ports["9464"]), "/routes/Meters").text)


def test_the_commands_of_other_pages_run_beside_the_route_of_webhooks(desk: Desk) -> None:
    desk.write("my/routes/shop.lot", blocks(page("conf/webhooks.md"), "lot")[0])
    started_with_first_route(desk)
    follow(desk, page("conf/first-route.md"))
    (tried,) = (line for line in blocks(page("conf/something-failed.md"), "sh")[1].splitlines() if " try " in line)
    assert desk.run(tried).startswith("# route Meters, event Send ")


def test_what_failed_is_shown_mended_and_sent_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page("conf/something-failed.md")
    started_with_first_route(desk)
    desk.run("$ sed -i s/PSOT/POST/ my/routes/meters.lot")
    configuration = desk.folder / "my/broker.yaml"
    configuration.write_text(configuration.read_text() + blocks(text, "yaml")[0])
    (desk.folder / "my/secrets/admin-token").write_text(token := "0123456789abcdef")
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", token)
    monkeypatch.setenv("REST_BRIDGE_ADMIN", desk.text("http://127.0.0.1:9464"))
    with desk.practice_api("--require", "unit") as api, desk.broker() as broker:
        assert api.stdout is not None
        for meter in ("m-12", "m-13"):
            desk.publish(f"meters/{meter}/reading", '{"kwh": 17.5}')
            broker.line(f"http_status on meters/{meter}/reading")
            api.stdout.readline()
        listed = desk.run("$ .venv/bin/rest-bridge failures")
        assert "422 http_status" in listed
        run = listed.split()[2]
        assert "unit is required" in desk.run(f"$ .venv/bin/rest-bridge failures show {run}")
        (mended,) = (line for line in blocks(text, "sh")[1].splitlines() if line.startswith("sed"))
        desk.run(mended)
        broker.line("routes reloaded: 1 route(s); changed Meters")
        assert desk.run("$ .venv/bin/rest-bridge retry --route Meters --yes").endswith(
            "2 messages sent again: 2 succeeded\n"
        )
        assert sorted(api.stdout.readline()[:24] for _ in range(2)) == [
            "201 POST /readings/m-12 ",
            "201 POST /readings/m-13 ",
        ]


def test_a_lossless_route_sends_after_a_kill_what_waited_for_its_server(desk: Desk) -> None:
    text = page("conf/nothing-lost.md")
    started_with_first_route(desk)
    policy, refused = blocks(text, "lot")[:2]
    route = desk.folder / "my/routes/meters.lot"
    route.write_text(
        route.read_text().replace("PSOT", "POST").replace("    ADD EVENT", f"{policy}    ADD EVENT") + refused
    )
    configuration = desk.folder / "my/broker.yaml"
    configuration.write_text(configuration.read_text() + blocks(text, "yaml")[0])
    with desk.broker() as broker:
        desk.publish("meters/m-12/reading", '{"kwh": 17.5, "unit": "kWh"}')
        broker.line("connection_failed")
        broker.send(signal.SIGKILL)
        broker.end()
    with desk.practice_api() as api, desk.broker():
        assert api.stdout is not None
        assert api.stdout.readline().startswith("201 POST /readings/m-12 ")


def test_a_signed_webhook_is_published_and_one_that_is_not_is_refused(desk: Desk) -> None:
    text = page("conf/webhooks.md")
    test, configuration, _ = blocks(text, "yaml")
    for name, written in (
        ("my/routes/shop.lot", blocks(text, "lot")[0]),
        ("my/routes/shop.test.yaml", test),
        ("my/broker.yaml", configuration),
    ):
        desk.write(name, written)
    made, _, called = blocks(text, "sh")
    subprocess.run(["sh", "-ec", made.splitlines()[0]], check=True)
    assert desk.run(made.splitlines()[1]) == "1 usable route, no faults\n"
    follow(desk, text)
    with desk.broker():
        printed = subprocess.run(["bash", "-ec", desk.text(called)], check=True, capture_output=True, text=True).stdout
    published, refused = printed.split("}{", 1)
    assert published == '{"status": "published", "topic": "shop/orders"'
    assert "invalid_signature" in refused
