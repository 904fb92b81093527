"""The template API inside an amqtt broker: `template_api.plugin.TemplateApiPlugin`.

The API is served by a process of its own, so that HTTP and searches never hold up the broker's loop.

| thread | runs |
|---|---|
| broker loop | `__init__`, `close`; nothing of ours in between |
| template-api-supervisor | waits for the child process, starts it again |
| the child process | waitress, the application, the library |
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin

from template_api.config import DEFAULT_DATABASE_URL, DEFAULT_HOST, DEFAULT_PORT, Settings, setting_faults
from template_api.errors import TemplateApiError
from template_api.serving.supervisor import Supervisor, listening_socket

log = logging.getLogger(__name__)


class TemplateApiPlugin(BasePlugin[BrokerContext]):
    """Serve the template library's API beside the broker.

    A setting that cannot be used, a taken port, a database or a library folder that cannot be opened stop the broker's
    start: the constructor logs the reason, which amqtt itself does not show, and raises. It blocks until the API is
    ready, about a second, longer when a library is imported first.

    Raises:
        TemplateApiError: the API cannot start.
    """

    @dataclass
    class Config:
        """Settings of the plugin in the broker's configuration.

        Attributes:
            host: address to listen on; 0.0.0.0 opens it to the network.
            port: port to listen on; 0 takes a free one, see `bound_port`.
            database_url: `sqlite:///path` or `postgresql+psycopg://user:password@host/database`.
            library: folder or `.jsonl` file to import when the database is empty.
            base_url: public address, from which templates get their `url`; default `http://{host}:{port}`.
            index_dir: folder of the search index; default `template-api` in the user's cache folder.
        """

        host: str = DEFAULT_HOST
        port: int = DEFAULT_PORT
        database_url: str = DEFAULT_DATABASE_URL
        library: str | None = None
        base_url: str | None = None
        index_dir: str | None = None

        def setting_faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
            """Return the name of each setting that stops the start, and why; writes nothing, connects to nothing.

            `rest-bridge serve --check` asks this of each plugin that it can ask.
            """
            yield from setting_faults(self.host, self.port, self.base_url)
            from template_api.library import place_faults  # brings SQLAlchemy, which only the check needs here

            yield from place_faults(self.database_url, self.library, self.index_dir)

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        config: TemplateApiPlugin.Config = self.config
        try:
            settings = Settings(**asdict(config))
            listening = listening_socket(settings.host, settings.port)
            self._bound_port: int = listening.getsockname()[1]
            self._supervisor = Supervisor(listening, settings.environment(settings.public_url(self._bound_port)))
            try:
                self._supervisor.start()
            except TemplateApiError:
                self._supervisor.stop()
                raise
        except TemplateApiError as exc:
            log.error("the template API cannot start: %s", exc)  # noqa: TRY400 - the reason is in the text
            raise

    @property
    def bound_port(self) -> int:
        """The port that the API listens on."""
        return self._bound_port

    @property
    def process_id(self) -> int | None:
        """The process id of the API's process; it changes when that process is started again."""
        return self._supervisor.pid

    async def close(self) -> None:
        """Shut the API down gracefully, without blocking the broker's loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._supervisor.stop)
