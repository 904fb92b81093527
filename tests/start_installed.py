"""Start what was installed in another environment and ask both halves: `python -m tests.start_installed BIN CONF`.

The wheel alone has to carry everything: grammar, OpenAPI description, first routes, console scripts.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.support.ports import free_ports


def main(binaries: Path, conf: Path) -> None:
    """Run `rest-bridge serve` with the shipped configuration on free ports; exit non-zero when anything is amiss."""
    load_without_compiling(binaries, conf)
    mqtt, http, api = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(conf, Path(folder, "conf"))
        broker, demo = Path(folder, "conf/broker.yaml"), Path(folder, "conf/routes/demo.lot")
        text = broker.read_text().replace("127.0.0.1:1883", f"127.0.0.1:{mqtt}")
        broker.write_text(text.replace("# port: 8000", f"port: {api}"))
        demo.write_text(demo.read_text().replace("8080", str(http)).replace("8000", str(api)))
        subprocess.run([str(binaries / "rest-bridge"), "new", "poll"], cwd=folder, check=True)
        command = [str(binaries / "rest-bridge"), "serve", "-c", "conf/broker.yaml"]
        with subprocess.Popen(command, cwd=folder) as running:
            try:
                answers = ask(http, api)
            finally:
                running.send_signal(signal.SIGTERM)
                status = running.wait(15)
    assert answers == ("published", True, True), answers
    assert status == 0, f"exit status {status}"
    print("the installed wheel serves, answers and stops")


def load_without_compiling(binaries: Path, conf: Path) -> None:
    """Load routes where TatSu cannot compile a grammar: the parser is part of the wheel."""
    program = (
        "import sys, tatsu, tatsu.tool, amqtt_rest_bridge\n"
        "tatsu.compile = tatsu.tool.compile = None\n"
        "assert amqtt_rest_bridge.load_routes(sys.argv[1]).routes"
    )
    subprocess.run([str(binaries / "python"), "-P", "-c", program, str(conf / "routes")], check=True)


def ask(http: int, api: int) -> tuple[str, bool, bool]:
    """Publish by HTTP, search by HTTP, and load what the library page loads."""
    hook = urllib.request.Request(f"http://127.0.0.1:{http}/webhook", data=b"hello", method="POST")
    search = f"http://127.0.0.1:{api}/api/search?q=webhook"
    found = bool(json.loads(read(urllib.request.Request(search)))["results"])
    pages = ("", "templates/webhook-intake", "docs", "static/site.css", "static/library.js", "static/icon.svg")
    shown = all(read(urllib.request.Request(f"http://127.0.0.1:{api}/{path}")) for path in pages)
    return json.loads(read(hook))["status"], found, shown


def read(request: urllib.request.Request, seconds: float = 30.0) -> bytes:
    """Send a request until it is answered."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return bytes(response.read())
        except OSError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
