"""A broker whose route files change while it runs."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from amqtt_rest_bridge import reload as module
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.reload import Fingerprint, LoadedRoutes, Reloader, fingerprint
from amqtt_rest_bridge.settings import Settings
from tests.support import forked
from tests.support.asking import ask
from tests.support.embedded_broker import Host, configuration
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS


def client_route(target: Recorder, name: str = "C", source: str = "in", destination: str = "out") -> str:
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD EVENT E
            WITH SOURCE_TOPIC "{source}" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "{destination}"
    """


def server_route(path: str, name: str = "S", port: int = 0) -> str:
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "{path}" WITH DESTINATION_TOPIC "hook"
    """


def loaded_before(folder: Path) -> LoadedRoutes:
    """Return the first load of a folder as it is now, of which nothing was parsed."""
    return LoadedRoutes((), b"", fingerprint([str(folder)]), frozenset())


def watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, looks: int, before: LoadedRoutes, *,
    step: Callable[[], object] = lambda: None, reading: Callable[[], object] = lambda: None,
) -> list[str | list[str]]:  # fmt: skip
    """Return the looks and tries of a reloader that looks at a folder so many times, and the names of routes it uses.

    A writer takes a `step` before each look, but not before that which ends a try, and `reading` while files are read.
    """
    log: list[str | list[str]] = []

    async def run() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def look(paths: list[str], beside: Fingerprint = frozenset()) -> Fingerprint:
            if log[-1:] != ["try"]:
                step()
            log.append("look")
            if log.count("look") > looks:
                loop.call_soon_threadsafe(over.set)
            return fingerprint(paths, beside)

        async def load(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
            log.append("try")
            reading()
            return await forked.run_loader(argument, texts)

        async def use(loaded: LoadResult) -> None:
            log.append(sorted(route.name for route in loaded.routes))

        monkeypatch.setattr(module, "fingerprint", look)
        monkeypatch.setattr(module, "run_loader", load)
        running = asyncio.create_task(Reloader(Settings(routes=str(folder)), use, before).run(0.0001))
        await asyncio.wait_for(over.wait(), SECONDS)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    return log


class Reloading:
    """A broker whose route files change, at first `a.lot`; `write` waits until a change has been taken or refused."""

    def __init__(self, folder: Path, text: str, **settings: Any) -> None:
        self.folder = folder
        (folder / "a.lot").write_text(text)
        self._is_child = bool(settings.get("processes"))
        seconds = 0 if self._is_child else 0.01  # a child is asked to reload
        self.host = Host(configuration(folder, reload_seconds=seconds, **settings))
        self._done = threading.Semaphore(0)
        self.looks = self.tries = 0
        if self._is_child:
            return
        reloader = self.host.program._loaded_reloader
        reload, wait = reloader.reload, reloader._asked.wait

        async def reloaded(*look: Fingerprint | None, **manner: bool) -> None:
            self.tries += 1
            await reload(*look, **manner)  # type: ignore[arg-type]
            self._done.release()

        async def asked() -> Literal[True]:
            self.looks += 1
            return await wait()

        reloader.reload = reloaded  # type: ignore[assignment,method-assign]
        reloader._asked.wait = asked  # type: ignore[method-assign]

    def __enter__(self) -> "Reloading":
        return self

    def __exit__(self, *_: object) -> None:
        self.host.stop()

    def write(self, name: str, text: str | None) -> None:
        if text is None:
            (self.folder / name).unlink()
        else:
            temporary = self.folder / "temporary"
            temporary.write_text(text)
            temporary.replace(self.folder / name)
        self.await_try()

    def await_try(self) -> None:
        """Wait until the next reload has been taken or refused."""
        if self._is_child:
            self.host.reload()
            return
        assert self._done.acquire(timeout=SECONDS)

    def await_status(self, path: str, wanted: int) -> None:
        """Wait until the bridge process has the new routes too."""
        for _ in range(1000):
            if self.post(path) == wanted:
                return
        raise AssertionError(f"{path} never answered {wanted}")

    def post(self, path: str) -> int:
        return ask(self.host.http_port, path, b"1").status
