"""Client mode: the door for messages, which become calls of the routes. One event loop.

The intakes of `mqtt` call `run_event` for a message of one event, `offer` for a message of all events that listen to
its topic. `RouteCalls.offer` then makes a call of it: its life is in `call`. `use_routes` replaces the routes, `stop`
and `drain` end them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from amqtt_rest_bridge.engine.call import RouteCalls, SharedByRoutes
from amqtt_rest_bridge.engine.event import PreparedRoute
from amqtt_rest_bridge.engine.failure_queue import FailureQueue
from amqtt_rest_bridge.engine.needs import Clock, Connects, Delivery, Host, Sends
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.schedule import Schedule
from amqtt_rest_bridge.engine.stages import prepare
from amqtt_rest_bridge.engine.stages.dedupe import Claims
from amqtt_rest_bridge.engine.stages.oauth2 import AuthorizedClient
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message, RestApiConfig, Route, RunKey
from amqtt_rest_bridge.topics import TopicIndex, schedule_topic

log = logging.getLogger(__name__)

_NO_EVENTS: Final[Collection[EventName]] = ()


class ClientMode:
    """The routes of client mode, and their calls.

    Args:
        host: What the engine needs.
        outcomes: Notes what becomes of messages; server mode shares it.
        runs_schedule: Returns whether this process runs the schedule of an event, where several share the routes.
    """

    def __init__(
        self, host: Host, outcomes: Outcomes, runs_schedule: Callable[[EventName], bool] = lambda _: True
    ) -> None:
        self._host = host
        self._outcomes = outcomes
        self._claims = Claims(host.seen_keys)
        self._failure_queue = FailureQueue(host.publisher, outcomes)
        self._shared = SharedByRoutes(host, outcomes, self._failure_queue)
        self._routes: dict[str, RouteCalls] = {}
        self._removed: dict[str, RouteCalls] = {}  # of routes that a reload has removed, while their calls go on
        self._by_event: dict[EventName, RouteCalls] = {}  # the route of every client event
        self._by_topic: TopicIndex[tuple[EventName, RouteCalls]] = TopicIndex(())  # the events that listen to a topic
        self._schedule = Schedule(self.run_event, runs_schedule, host.clock, host.chance)
        self._workers = 1

    def offer(
        self, message: Message, *, hops: int = 0, excluded: Collection[EventName] = _NO_EVENTS,
        delivery: Delivery | None = None, size: int = 0,
    ) -> None:  # fmt: skip
        """Offer a message to each event that listens to its topic. Never blocks: its calls run later.

        Args:
            message: The message.
            hops: Routes that it has passed through.
            excluded: Events to leave out, since they receive the message by another subscription.
            delivery: Held for each of its calls, and during this method.
            size: The size of the message in bytes. The length of its payload counts if that is more.
        """
        listeners = self._by_topic[message.topic]
        if not listeners:
            self._outcomes.note_unmatched(message)
        if delivery is not None:
            delivery.hold()  # a call that ends at once must not acknowledge the message before all events have it
        try:
            for name, route in listeners:
                if name not in excluded:
                    route.offer(name[1], message, hops, delivery, size=size)
        finally:
            if delivery is not None:
                delivery.release()

    def run_event(
        self, name: EventName, message: Message, delivery: Delivery | None = None, retry_of: str | None = None, *,
        hops: int = 0, size: int = 0,
    ) -> RunKey | None:  # fmt: skip
        """Run one event with a message: from the subscription of this event, for its schedule, or for a retry.

        Args:
            name: The route and the event.
            message: The message.
            delivery: Held until the call has ended.
            retry_of: The id of the run that is repeated.
            hops: Routes that the message has passed through.
            size: The size of the message in bytes. The length of its payload counts if that is more.

        Returns:
            The key from which the id of the run is made, None if the event is gone.
        """
        route = self._by_event.get(name)
        return None if route is None else route.offer(name[1], message, hops, delivery, retry_of, size)

    def fail_event(
        self, name: EventName, message: Message, failure: CallError, delivery: Delivery | None = None, *, hops: int = 0
    ) -> None:
        """End a message for one event with a failure that its source has found: nothing is sent.

        The delivery is held until the failure is published. If the event is gone, nothing is done.
        """
        route = self._by_event.get(name)
        if route is not None:
            route.fail(name[1], message, hops, delivery, failure)

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Run these routes from now on.

        A call that waits uses the new definition of its event, and a lossless call uses it at its next attempt. Any
        other call that has begun keeps the definition that it began with. If the event was removed, a waiting call
        fails, and a lossless call is left to its source.

        Raises:
            ConfigurationError: BASE_ADDRESS, USERNAME or a proxy variable cannot be used; nothing has changed then.
        """
        routes = list(routes)
        definitions = [self._define(route) for route in routes]
        # A removed route that comes back while calls of it go on keeps them, its queues and its counts.
        going_on = {name: route for name, route in self._removed.items() if not route.is_idle}
        self._outcomes.use_routes(routes, {name: route.statistics for name, route in going_on.items()})
        earlier, self._routes = going_on | self._routes, {}
        for definition in definitions:
            name = definition.route.name
            if (known := earlier.pop(name, None)) is not None:
                known.use(definition)
                self._routes[name] = known
            elif definition.events:
                self._routes[name] = RouteCalls(definition, self._outcomes.statistics[name], self._shared)
                self._routes[name].share_limits(self._workers)
        for removed in earlier.values():
            removed.use(PreparedRoute(removed.definition.route, {}, None))
        self._removed = earlier
        self._find_listeners()
        self._schedule.use(routes)

    def _find_listeners(self) -> None:
        """Index the client events of all routes, by name and by SOURCE_TOPIC."""
        self._by_event = {}
        listeners: list[tuple[str, tuple[EventName, RouteCalls]]] = []
        for route in self._routes.values():
            for event in route.definition.events.values():
                self._by_event[event.name] = route
                topic = event.event.source_topic
                # An event that has only a schedule is run by that alone, whatever is published on its topic.
                if topic != schedule_topic(*event.name):
                    listeners.append((topic, (event.name, route)))
        self._by_topic = TopicIndex(listeners)

    def drop_calls(self) -> None:
        """Drop waiting calls whose source has dropped the message, to deliver it again (`Delivery.is_dropped`)."""
        for route in self._all_routes():
            route.drop_calls()

    def share_limits(self, workers: int, ordered_until: float) -> None:
        """Share RATE_LIMIT and probes among so many workers; begin ORDERED calls only before a monotonic time."""
        self._workers, self._shared.ordered_until = workers, ordered_until
        for route in self._all_routes():
            route.share_limits(workers)

    def stop(self) -> None:
        """Begin no more calls except for open batches. Running calls go on; waiting ones are left to their source."""
        self._schedule.stop()
        for route in self._all_routes():
            route.stop()

    async def drain(self, seconds: float) -> None:
        """Wait, after `stop`, until running calls have ended and results are published; cancel them after `seconds`.

        Logs how many messages were lost, and how many their source keeps.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (tasks := self._shared.tasks | self._failure_queue.tasks) and (left := deadline - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=left)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for route in self._all_routes():
            lost, kept = route.messages_left()
            if lost:
                log.warning("route %s: %d message(s) had not been answered at the end", route.name, lost)
            if kept:
                log.info("route %s: %d message(s) have not ended: their source sends them again", route.name, kept)
            if route.definition.client is not None:
                route.definition.client.close()
        self._outcomes.quiet_log.flush()

    def _all_routes(self) -> Iterator[RouteCalls]:
        yield from self._routes.values()
        yield from self._removed.values()

    def _define(self, route: Route) -> PreparedRoute:
        """Return the definition of a route. An unchanged route keeps its definition, with the state of its stages."""
        known = self._routes.get(route.name)
        before = None if known is None else known.definition
        if before is not None and before.route == route:
            return before
        if not route.client_events:
            return PreparedRoute(route, {}, None)
        host = self._host
        client = before.client if before is not None and before.route.config == route.config else None
        if client is None:
            client = sender_of(route.config, host.connect, host.clock)
        events = {
            event.name: prepare(route, event, host, client=client, claims=self._claims) for event in route.client_events
        }
        return PreparedRoute(route, events, client)


def sender_of(config: RestApiConfig, connect: Connects, clock: Clock) -> Sends:
    """Return the client that sends the requests of a route; with OAuth2 it adds the access token.

    Raises:
        ConfigurationError: BASE_ADDRESS, OAUTH2_TOKEN_URL or a proxy variable cannot be used.
    """
    client = connect(config, config.base_address or "")
    if config.oauth2_token_url is None:
        return client
    return AuthorizedClient(client, connect(config, config.oauth2_token_url), config, clock)
