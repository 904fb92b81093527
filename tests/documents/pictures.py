"""The pictures of the status pages in README and the reference: taken of a real run, with a browser.

    python -m tests.documents.pictures [MINUTES]

runs a broker with five routes and their servers for ten minutes, and writes `conf/pictures/*-page*.png`. Look at them
before they are committed.
"""

import random
import sys
import time
import urllib.request
from contextlib import suppress

from tests.support.admin_client import TOKEN, Admin, admin_with_token, client_route, runs, server_route
from tests.support.browser import CHROMIUM, Page, browsing
from tests.support.documents import ROOT
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.ports import free_port

FOLDER = ROOT / "conf/pictures"
WIDTH = 1120
REASON = b'{"error": {"field": "level", "message": "level is a whole number from 0 to 10"}}'


def answer(seen: Seen) -> tuple[int, bytes]:
    """Refuse what has no number, and take a moment for the rest."""
    time.sleep(random.uniform(0.002, 0.03))
    return (422, REASON) if b"high" in seen.body else (200, b'{"id": 17}')


def routes(url: str) -> str:
    """Return four routes of client mode, of which one has no server, and one of server mode."""
    names = (("Orders", "orders/+", url), ("Invoices", "done/#", url), ("Levels", "tanks/+", url))
    found = [client_route(base, name=name).replace("orders/+", topic) for name, topic, base in names]
    found[1] = found[1].replace('"done/{', '"invoices/{')
    found[2] = found[2].replace('"done/{', '"levels/{')
    dead = client_route("http://127.0.0.1:9", name="Alarms", config="WITH RETRIES 0").replace("orders/+", "alarms/+")
    guarded = server_route("Webhook").replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "right" WITH SERVER_PORT')
    served = guarded.replace('SERVER_PORT "0"', f'SERVER_PORT "{free_port()}"')
    return "".join(found) + dead.replace('"done/{', '"raised/{') + served


def run(host: Host, seconds: float) -> None:
    """Publish and post at a rate that rises and falls."""
    client, end, number = host.client(), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        client.publish(f"orders/{number % 90}", b'{"count": 3}')
        if number % 3 == 0:
            client.publish(f"tanks/{number % 7}", b'{"level": "high"}' if number % 120 == 0 else b'{"level": 4}')
        if number % 500 == 0:
            client.publish("alarms/door", b'{"open": true}')
        if number % 10 == 0:
            post(host, "/hook" if number % 400 else "/hok", b"wrong" if number % 200 == 0 else b"right")
        time.sleep(random.uniform(0.02, 0.1) * (1 + number // 300 % 3))


def post(host: Host, path: str, token: bytes) -> None:
    headers = {"Authorization": f"Bearer {token.decode()}"}
    with suppress(OSError):
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{host.http_port}{path}", b"{}", headers), timeout=10
        ).close()


def take(page: Page, admin: Admin) -> None:
    """Write the pictures."""
    (failed, *_) = runs(admin, "?route=Levels&outcome=failed")
    pictures = {
        "status-page": ("/", "light", 960), "status-page-dark": ("/", "dark", 960),
        "route-page": ("/routes/Levels", "light", 720), "run-page": (f"/runs/{failed['id']}", "light", 640),
    }  # fmt: skip
    for name, (path, scheme, height) in pictures.items():
        page.colours(scheme)
        page.size(WIDTH, height)
        page.open(f"http://any:{TOKEN}@127.0.0.1:{admin.port}{path}")
        if path != pictures["run-page"][0]:
            page.wait("document.querySelector('[data-live]').textContent === 'live'")
        page.screenshot(FOLDER / f"{name}.png")


def main(minutes: float) -> None:
    """Run, and write the pictures."""
    assert CHROMIUM is not None, "there is no Chromium"
    with recording() as target:
        target.answer = answer
        with hosting(routes(target.url), admin_port=0, admin_token=TOKEN) as host:
            run(host, 60 * minutes)
            with browsing(CHROMIUM, takes_pictures=True) as page:
                take(page, admin_with_token(host))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
