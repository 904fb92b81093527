"""The capabilities of client events, one module each. Decisions need no I/O: time and chance are handed in.

Most are a `Stage` of `event`, with hooks around each attempt of a call: `schema`, `when`, `dedupe`, `on_change`,
`signature`, `retries`, and what `batch` does with a refusal. Five decide when a call goes on, and keep waiting calls:
`overload`, `order`, `batch`, `rate_limit`, `breaker`. `oauth2` wraps the client that sends requests.

A new capability is a module here, its row in `prepare`, a test file, and a line of the reference.
"""

from amqtt_rest_bridge.engine.event import PreparedEvent, Stage
from amqtt_rest_bridge.engine.needs import Host, Sends
from amqtt_rest_bridge.engine.stages.batch import Items, SplitStage
from amqtt_rest_bridge.engine.stages.dedupe import Claims, DedupeStage
from amqtt_rest_bridge.engine.stages.on_change import OnChangeStage
from amqtt_rest_bridge.engine.stages.retries import RetriesStage
from amqtt_rest_bridge.engine.stages.schema import SchemaStage
from amqtt_rest_bridge.engine.stages.signature import SignatureStage
from amqtt_rest_bridge.engine.stages.when import WhenStage
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import ClientEvent, Route


def prepare(
    route: Route, event: ClientEvent, host: Host, *, client: Sends | None = None, claims: Claims | None = None
) -> PreparedEvent:
    """Return a prepared event, with a stage for each setting that needs one.

    Args:
        route: The route.
        event: One of its client events.
        host: What the engine needs.
        client: Sends its requests; None if the caller sends them, each call once.
        claims: The claims on keys of DEDUPE_KEY; without them DEDUPE_KEY has no effect.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """
    name = route.name, event.name
    tries_again = client is not None and (route.is_lossless or route.config.retries > 0)
    stages: tuple[Stage | None, ...] = (
        SchemaStage(event.schema_file) if event.schema_file is not None else None,
        WhenStage(event.when, masker_of(route)) if event.when is not None else None,
        DedupeStage(name, event.dedupe_key, event.dedupe_for, claims)
        if event.dedupe_key is not None and claims is not None
        else None,
        OnChangeStage(event.on_change, event.on_change_for, host.clock) if event.on_change is not None else None,
        SignatureStage(event.signature) if event.signature is not None else None,
        RetriesStage(route, event, host) if tries_again else None,
        SplitStage(halves_refused=event.batch_split) if event.batch_size is not None else None,
    )
    own = [stage for stage in stages if stage is not None]
    items = None if event.batch_size is None or event.body is None else Items(event.batch_item, event.body)
    return PreparedEvent(route, event, own, host, items=items, client=client)
