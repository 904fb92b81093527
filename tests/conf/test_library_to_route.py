"""From the library to a running route: a template's page shows the line that installs it, the status page its calls."""

import html
import re
import textwrap
from functools import partial
from pathlib import Path

from tests.documents.test_readme_running import README, Shown
from tests.support.admin_client import Admin
from tests.support.asking import ask
from tests.support.commands import Running
from tests.support.forked import REST_BRIDGE, Forked, run
from tests.support.ports import free_port
from tests.support.waiting import eventually


def test_the_line_of_a_templates_page_installs_it_and_its_first_call_is_on_the_status_page(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    notebook = tmp_path / "conf/library/sensor-rest-facade/greenhouse-api.lotnb"
    notebook.write_text(shown._on_free_ports(notebook.read_text()))
    admin = Admin(free_port())
    configuration = tmp_path / "conf/broker.yaml"
    off = "# admin_port: null "
    assert f"sed -i 's/{off}/admin_port: 9464 /' conf/broker.yaml" in README
    assert off in configuration.read_text()
    configuration.write_text(configuration.read_text().replace(off, f"admin_port: {admin.port} "))
    running = Running(Forked(REST_BRIDGE, shown.serve[1:], tmp_path, bridges=1))
    try:
        running.line("ready: MQTT on 127.0.0.1:")
        text = ask(int(shown._on_free_ports("8000")), "/templates/sensor-rest-facade").body.decode()
        (line,) = re.findall(r'<code id="install">(.*?)</code>', text)
        route = partial(ask, int(shown._on_free_ports("8080")), "/api/greenhouse/temperature")
        assert route().status == 404  # the port is that of the demonstration, the path is not there yet
        command = f".venv/bin/{html.unescape(line)}"
        assert f"$ {command.replace(shown._on_free_ports('8000'), '8000')}\n" in README
        installed = run(REST_BRIDGE, shown._words(command)[1:], tmp_path).stdout
        printed = README.partition("--allow-sample-credentials\n")[2].partition("   Write into")[0]
        assert installed.replace(shown._on_free_ports("8080"), "8080").startswith(textwrap.dedent(printed))
        eventually(lambda: route().status == 401)  # it asks its callers for a password
        call = admin.calls("GreenhouseApi")[0]
        assert (call["url"], call["status"]) == ("/api/greenhouse/temperature", 401)
        assert "/api/greenhouse/temperature" in admin.get("/routes/GreenhouseApi").text
    finally:
        running.kill()
