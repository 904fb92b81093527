"""The template API inside an amqtt broker: a process of its own serves it, so that it never holds up the broker's loop.

The broker's loop runs `__init__` and `close`, and nothing of ours in between; a thread waits for the process.
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
            self.bound_port: int = listening.getsockname()[1]
            """The port that the API listens on."""
            self._supervisor = Supervisor(listening, settings.environment(settings.public_url(self.bound_port)))
            try:
                self._supervisor.start()
            except TemplateApiError:
                self._supervisor.stop()
                raise
        except TemplateApiError as exc:
            log.error("the template API cannot start: %s", exc)  # noqa: TRY400 - the reason is in the text
            raise

    async def close(self) -> None:
        """Shut the API down gracefully, without blocking the broker's loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._supervisor.stop)
