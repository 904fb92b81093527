"""The live page of the sample library shows what is published, in a browser."""

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import Page
from tests.support.documents import ROOT
from tests.support.embedded_broker import hosting

NOTEBOOK = ROOT / "conf/library/sensor-rest-facade/greenhouse-api.lotnb"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_live_page_shows_each_value_as_it_comes(site: ThreadingHTTPServer, tmp_path: Path, browser: Page) -> None:
    *_, route, page_cell = [cell["value"] for cell in json.loads(NOTEBOOK.read_text())]
    (text,) = re.findall(r"```html\n(.*?)```", page_cell, re.DOTALL)
    assert text.count("\n") <= 62
    origin = f"http://127.0.0.1:{site.server_address[1]}"
    route = route.replace("'8080'", "'0'").replace("http://localhost:5173", origin)
    with hosting(route) as host, browser.elsewhere() as page:
        (tmp_path / "page.html").write_text(text.replace("localhost:8080", f"127.0.0.1:{host.http_port}"))
        client = host.client()
        client.publish("greenhouse/temperature", b"21.5")
        page.open(f"{origin}/page.html")
        page.evaluate("document.querySelector('input').value = 'change-me'")
        page.evaluate("document.querySelector('button').click() || 1")
        page.wait("document.querySelector('table').innerText.trim() === 'temperature\\t21.5'")
        client.publish("greenhouse/temperature", b"22")
        client.publish("greenhouse/humidity", b'{"percent": 60}')
        shown = json.dumps('temperature\t22\nhumidity\t{"percent":60}')
        page.wait(f"document.querySelector('table').innerText.trim() === {shown}")
        assert page.errors == []
