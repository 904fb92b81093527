"""How long until the status page of a browser shows what is wrong, with its cause: seconds from the last byte sent.

    python -m tests.benchmarks.problem_seconds [ROUNDS]

A page in Chromium that was open before; each kind of trouble in a broker of its own, as problems are listed for ten
minutes. Medians, and the slowest, of 3 rounds by default.
"""

import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError

from tests.benchmarks import rig
from tests.support.admin_client import admin_of, client_route, refusing_with_reason, server_route
from tests.support.browser import CHROMIUM, Page, browsing
from tests.support.embedded_broker import Host, hosting
from tests.support.full_disk import full_disk, tidy
from tests.support.http_recorder import recording

WANTED = "at most 3 s"
DEAD = client_route("http://127.0.0.1:9")
SIGNED = server_route().replace('"received"', '"received" WITH SIGNATURE_SECRET "hush-hush-hush"')
GUARDED = server_route().replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "x" WITH SERVER_PORT')
Act = Callable[[Host], None]


def publish(payload: bytes = b"bad") -> Act:
    """Return what publishes one message."""
    return lambda host: host.client().publish("orders/7", payload)


def request(path: str = "/hook") -> Act:
    """Return what sends one request with a wrong token and a wrong signature."""

    def send(host: Host) -> None:
        headers = {"X-Hub-Signature-256": "sha256=00", "Authorization": "Bearer wrong"}
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{host.http_port}{path}", b"{}", headers))
        except HTTPError as refused:
            refused.close()

    return send


def seconds(page: Page, routes: str, act: Act, shown: str, folder: Path) -> float:
    """Return the seconds from the end of an act to a page that shows a text among its problems."""
    with hosting(routes, admin_port=0, spool=str(folder / "spool.db")) as host:
        page.open(f"http://127.0.0.1:{admin_of(host).port}/")
        page.wait("document.querySelector('[data-live]').innerText === 'live'")
        wait = f"document.querySelector('#attention').innerText.includes({shown!r})"
        if shown == "The spool refuses messages":
            with full_disk():
                found = timed(page, host, act, wait)
            host.wait(tidy(host))
            return found
        return timed(page, host, act, wait)


def timed(page: Page, host: Host, act: Act, wait: str) -> float:
    """Act, and return the seconds until an expression holds on the page."""
    act(host)
    began = time.monotonic()
    page.wait(wait)
    return time.monotonic() - began


def main(rounds: int = 3) -> None:
    """Print the table."""
    assert CHROMIUM is not None, "there is no Chromium here"
    with recording() as target, browsing(CHROMIUM) as page:
        target.answer = refusing_with_reason
        lossless = client_route(target.url, more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
        kinds = {
            "dead target": (DEAD, publish(), "connection_failed"),
            "422 with a reason": (client_route(target.url), publish(), "422 http_status"),
            "wrong signature": (SIGNED, request(), "401 invalid_signature"),
            "wrong token": (GUARDED, request(), "401 unauthorized"),
            "wrong path": (server_route(), request("/hok"), "404 not_found"),
            "full disk": (lossless, publish(b"1" * 10_000), "The spool refuses messages"),
        }
        for name, (routes, act, shown) in kinds.items():
            found = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(seconds(page, routes, act, shown, Path(folder)))
            rig.report(name, f"{rig.median(found):.2f} s, {max(found):.2f} s", WANTED)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
