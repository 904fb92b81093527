"""The queue of commands: executed one after the other and answered; the texts of routes are retained. Event loop only.

`broker` or `group` brings the payloads, `execution` executes. The queue is bounded in number and bytes; commands beyond
it are refused by an answer. Route texts are parsed in a process of their own, files are read and written on threads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from amqtt_rest_bridge.lot.model import Publication, Route
from amqtt_rest_bridge.tools.commands.command import (
    OUTPUT_TOPIC,
    ROOT,
    CommandAnswer,
    MqttCommand,
    failure_answer,
    parse_command,
    subject_of,
    write_answer,
)
from amqtt_rest_bridge.tools.commands.execution import Execution, FolderError, RouteFolder, RunsRoutes

log = logging.getLogger(__name__)

MOST_COMMANDS: Final = 64
MOST_COMMAND_BYTES: Final = 1 << 20

Publish = Callable[[Publication], object]
"""Publishes on topics where clients may not; never waits."""


class CommandQueue:
    """The commands of named users, in the order in which they came.

    Args:
        folder: The folder of routes that commands add.
        publish: Publishes answers, and what is retained.
    """

    def __init__(self, folder: str, publish: Publish) -> None:
        self._folder = RouteFolder(folder)
        self._folder.prepare()
        self._publish = publish
        self._waiting: deque[tuple[MqttCommand, int, Publish]] = deque()
        self._bytes = 0
        self._executing = asyncio.Lock()
        self._wake_up = asyncio.Event()
        self._texts_changed = True
        self._texts: dict[str, bytes] = {}  # retained, by route

    def receive(self, payload: bytes, publish: Publish) -> None:
        """Queue the payload of a command, whose answer `publish` publishes; refuse it when too many wait."""
        command = parse_command(payload)
        size = len(command.arguments)
        if len(self._waiting) >= MOST_COMMANDS or (self._waiting and self._bytes + size > MOST_COMMAND_BYTES):
            why = f"{len(self._waiting)} commands wait already; send it again when they are answered"
            publish(_output(command, failure_answer(command, subject_of(command.arguments), why)))
            return
        self._waiting.append((command, size, publish))
        self._bytes += size
        self._wake_up.set()

    def forget(self) -> None:
        """Forget the queue and what is retained: clients will send again. The present command goes on."""
        self._waiting.clear()
        self._bytes, self._texts = 0, {}
        self.routes_changed()

    async def settled(self) -> None:
        """Wait until no command is executed and its answer is published."""
        async with self._executing:
            pass

    def routes_changed(self) -> None:
        """Retain the texts of routes again, after a reload."""
        self._texts_changed = True
        self._wake_up.set()

    def status_published(self, route: str, payload: bytes) -> None:
        """Publish the status of a route on its topic below Routes; the payload is empty for a route that is gone.

        Its text follows: the notebook extension takes the last message below a route for its text.
        """
        self._publish(Publication(f"{ROOT}/Routes/{route}/status", payload, retain=True))
        if payload and route in self._texts:
            self._publish(Publication(f"{ROOT}/Routes/{route}", self._texts[route], retain=True))

    async def run(self, service: RunsRoutes) -> None:
        """Execute commands until cancelled."""
        execution = Execution(service, self._folder)
        while True:
            await self._publish_texts(service)
            if self._waiting:
                command, size, publish = self._waiting.popleft()
                self._bytes -= size
                async with self._executing:
                    answer = await execution.answer(command)
                    log.info("command %s: %s", command.word, answer.message.partition("\n")[0])
                    await self._publish_texts(service)  # first: a tool looks at them when it has its answer
                    publish(_output(command, answer))
            elif not self._texts_changed:
                self._wake_up.clear()
                await self._wake_up.wait()

    async def _publish_texts(self, service: RunsRoutes) -> None:
        """Retain the texts of routes that changed: as a command sent them, others in canonical layout."""
        if not self._texts_changed:
            return
        self._texts_changed = False
        texts = await asyncio.to_thread(self._read_texts, service.by_name)
        for name in [*texts, *(self._texts.keys() - texts)]:
            text = texts.get(name, b"")
            if name not in self._texts:  # amqtt sends what is retained in the order in which it first came
                service.report(name)
            if self._texts.get(name) != text:
                self._publish(Publication(f"{ROOT}/Routes/{name}", text, retain=True))
        self._texts = texts

    def _read_texts(self, routes: Mapping[str, Route]) -> dict[str, bytes]:
        """Return the texts of routes. Blocks."""
        texts: dict[str, bytes] = {}
        for name, route in routes.items():
            text = None
            try:
                if self._folder.is_path_of(name, route.path):
                    text = self._folder.read(name)
            except (FolderError, OSError) as error:
                log.info("route %s: its text cannot be read: %s", name, error)
            texts[name] = (route.definition if text is None else text).encode("utf-8", "replace")
        return texts


def _output(command: MqttCommand, answer: CommandAnswer) -> Publication:
    return Publication(OUTPUT_TOPIC, write_answer(command, answer))
