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

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin

from template_api.config import Settings
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

    Config = Settings  # type: ignore[assignment]  # amqtt looks for a dataclass of this name

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        settings: Settings = self.config
        try:
            settings.check()
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

    async def close(self) -> None:
        """Shut the API down gracefully, without blocking the broker's loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._supervisor.stop)
