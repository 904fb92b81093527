"""What follows from all routes together: ports, filters to watch, what a reload changed. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from amqtt_rest_bridge.lot.model import EventName, Route
from amqtt_rest_bridge.topics import filter_matches, widest_filter

_SLACK_SECONDS: Final = 5.0  # for room on the way to the broker, and for a bridge that is behind


def changes(before: Iterable[Route], after: Iterable[Route]) -> str:
    """Return in words which routes were added, changed and removed; "no changes" when none were."""
    old, new = ({route.name: route for route in routes} for routes in (before, after))
    lists = {
        "added": new.keys() - old.keys(),
        "changed": {name for name in new.keys() & old.keys() if new[name] != old[name]},
        "removed": old.keys() - new.keys(),
    }
    return "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in lists.items() if names) or "no changes"


def event_names(routes: Iterable[Route]) -> set[EventName]:
    """Return the names of all events, each with that of its route."""
    names: set[EventName] = set()
    for route in routes:
        names.update((route.name, event.name) for event in route.client_events)
        names.update((route.name, event.name) for event in route.server_events)
    return names


def read_filters(routes: Iterable[Route]) -> list[str]:
    """Return the topic filters of all read events."""
    return [event.read_filter for route in routes for event in route.server_events if event.read_filter is not None]


def reply_filters(routes: Iterable[Route]) -> dict[str, float]:
    """Return topic filters that match every topic a reply can come on, with the seconds that a request may take."""
    filters: dict[str, float] = {}
    for route in routes:
        for event in route.server_events:
            if event.reply_topic is not None:
                topic_filter = widest_filter(event.reply_topic.source)
                filters[topic_filter] = max(filters.get(topic_filter, 0.0), longest_request(route))
    return filters


def asking(routes: Iterable[Route], topic: str, *, reads: bool = False) -> list[tuple[str, str]]:
    """Return the names of the routes and events whose requests may wait for a reply on a topic.

    With `reads` also those of read events that answer with what is published there.
    """
    return [
        (route.name, event.name)
        for route in routes
        for event in route.server_events
        if (event.reply_topic is not None and filter_matches(widest_filter(event.reply_topic.source), topic))
        or (reads and event.read_filter is not None and filter_matches(event.read_filter, topic))
    ]


def server_ports(routes: Iterable[Route]) -> set[int]:
    """Return the ports that server mode needs."""
    return {route.config.server_port for route in routes if route.config.enable_server and route.server_events}


def with_bound_ports(routes: Iterable[Route], bound: Mapping[int, int]) -> list[Route]:
    """Return routes as they are shown: with the bound port where that for SERVER_PORT 0 is known.

    Args:
        routes: As they were loaded.
        bound: The bound port for each configured one.
    """
    return [
        replace(route, config=replace(route.config, server_port=bound[0]))
        if route.config.server_port == 0 and 0 in bound
        else route
        for route in routes
    ]


def shown_endpoint(method: str, port: int, path: str) -> str:
    """Return an endpoint as texts and drawings name it: `POST :8080/hook`."""
    return f"{method} :{port or '(a free port)'}{path}"


def longest_request(route: Route) -> float:
    """Return the seconds after which a request that a route has begun to serve has ended.

    With a reply topic: REQUEST_TIMEOUT for its turn, and once more for the reply.
    """
    waits = any(event.reply_topic is not None for event in route.server_events)
    return route.config.request_timeout * (2 if waits else 1) + _SLACK_SECONDS


def route_set_hash(routes: Iterable[Route]) -> str:
    """Return 16 hexadecimal digits of the definitions of routes; secrets, and places in files, do not count."""
    texts = sorted(f"{route.name}\0{route.definition}" for route in routes)
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:16]
