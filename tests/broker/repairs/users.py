"""Users with passwords and an ACL that can be slow, for the brokers of these tests."""

import asyncio
import threading
from typing import Any, Final

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from tests.benchmarks.mqtt_wire import Wire
from tests.support.embedded_broker import Host
from tests.support.waiting import SECONDS


class Passwords(BaseAuthPlugin):
    """A user's password is his name."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return session.username == session.password


class Rights(BaseTopicPlugin):
    """An ACL: users may publish on topics that have their name, or `all`, as a level; it fails for a level `broken`.

    It answers only once `may` is set about publications with a level `slow`, and about deliveries with a level `late`;
    `asked` is set when it is asked about one. About each subscription with a level `slow` it thinks for 0.1 s.
    """

    asked = threading.Event()
    may = threading.Event()

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        assert session is not None
        levels = (topic or "").split("/")
        if "broken" in levels:
            raise RuntimeError("the plugin is broken")
        if action is Action.SUBSCRIBE and "slow" in levels:
            await asyncio.sleep(0.1)
        elif {Action.PUBLISH: "slow", Action.RECEIVE: "late"}.get(action or Action.SUBSCRIBE) in levels:
            self.asked.set()
            while not self.may.is_set():
                await asyncio.sleep(0.001)
        return action is not Action.PUBLISH or session.username in levels or "all" in levels


PASSWORDS: Final = f"{__name__}.Passwords"
RIGHTS: Final = f"{__name__}.Rights"
USERS: Final[dict[str, Any]] = {
    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False},
    PASSWORDS: {},
    RIGHTS: {},
}


def user(host: Host, name: str, client_id: str | None = None, **options: Any) -> Wire:
    """Connect a user, by default with his name as client id."""
    return Wire(host.mqtt_port, client_id or name, login=(name, name), timeout=SECONDS, **options)
