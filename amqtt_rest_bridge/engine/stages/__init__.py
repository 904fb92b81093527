"""The capabilities of client events, one module each. Decisions need no I/O: time and chance are handed in.

Most are a `Stage` of `event`, with hooks around each attempt of a call: `schema`, `when`, `dedupe`, `on_change`,
`signature`, `retries`, and what `batch` does with a refusal. Five decide when a call goes on, and keep waiting calls:
`overload`, `order`, `batch`, `rate_limit`, `breaker`. `oauth2` wraps the client that sends requests.

A new capability is a module here, its row in `prepare`, a test file, and a line of the reference.
"""

from collections.abc import Callable

from amqtt_rest_bridge.engine.event import PreparedEvent, Stage
from amqtt_rest_bridge.engine.needs import Sends
from amqtt_rest_bridge.engine.stages.batch import Items, Split
from amqtt_rest_bridge.engine.stages.dedupe import Claims, Deduplicated
from amqtt_rest_bridge.engine.stages.on_change import OnChange
from amqtt_rest_bridge.engine.stages.retries import TriedAgain
from amqtt_rest_bridge.engine.stages.schema import Checked
from amqtt_rest_bridge.engine.stages.signature import Signed
from amqtt_rest_bridge.engine.stages.when import When
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import ClientEvent, Route, RunIds


def prepare(
    route: Route, event: ClientEvent, runs: RunIds, *, max_body_bytes: int, client: Sends | None = None,
    keeps_messages: bool = False, time: Callable[[], float] = lambda: 0.0,
    monotonic: Callable[[], float] = lambda: 0.0, chance: Callable[[], float] | None = None,
    claims: Claims | None = None,
) -> PreparedEvent:  # fmt: skip
    """Return a prepared event, with a stage for each setting that needs one.

    Args:
        route: The route.
        event: One of its client events.
        runs: Makes the ids of calls.
        max_body_bytes: See `PreparedEvent`.
        client: See there.
        keeps_messages: See there.
        time: Returns Unix seconds.
        monotonic: Returns monotonic seconds.
        chance: Returns a number from 0 to 1; without it a call has one attempt.
        claims: The claims on keys of DEDUPE_KEY; without them DEDUPE_KEY has no effect.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """
    name = route.name, event.name
    tries_again = chance is not None and (route.is_lossless or route.config.retries > 0)
    stages: tuple[Stage | None, ...] = (
        Checked(event.schema_file) if event.schema_file is not None else None,
        When(event.when, masker_of(route)) if event.when is not None else None,
        Deduplicated(name, event.dedupe_key, event.dedupe_for, claims)
        if event.dedupe_key is not None and claims is not None
        else None,
        OnChange(event.on_change, event.on_change_for, monotonic) if event.on_change is not None else None,
        Signed(event.signature) if event.signature is not None else None,
        TriedAgain(route, event, time, chance) if tries_again and chance is not None else None,
        Split(refused=event.batch_split) if event.batch_size is not None else None,
    )
    own = [stage for stage in stages if stage is not None]
    items = None if event.batch_size is None or event.body is None else Items(event.batch_item, event.body)
    return PreparedEvent(
        route, event, own, runs,
        max_body_bytes=max_body_bytes, items=items, client=client, keeps_messages=keeps_messages,
    )  # fmt: skip
