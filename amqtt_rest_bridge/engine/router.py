"""Which events a message concerns: an index of the SOURCE_TOPICs of all routes. Pure; a reload makes another one."""

from collections.abc import Iterable
from typing import NamedTuple

from amqtt_rest_bridge.engine.call import RouteCalls
from amqtt_rest_bridge.lot.model import EventName
from amqtt_rest_bridge.topics import TopicIndex, schedule_topic


class Listener(NamedTuple):
    """A client event, and the calls of its route."""

    name: EventName
    calls: RouteCalls


class Router:
    """The client events of these routes, by topic and by name.

    An event that has only a schedule is run by that alone, whatever is published on its topic.
    """

    def __init__(self, routes: Iterable[RouteCalls] = ()) -> None:
        entries = [
            (event.event.source_topic, Listener(event.name, calls))
            for calls in routes
            for event in calls.definition.events.values()
        ]
        self.by_name = {listener.name: listener for _, listener in entries}
        """Every client event."""
        self.by_topic = TopicIndex([entry for entry in entries if entry[0] != schedule_topic(*entry[1].name)])
        """Those that listen to a topic: `by_topic[topic]`."""
