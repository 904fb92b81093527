"""What follows from all routes together."""

from amqtt_rest_bridge.lot.route_set import (
    asking,
    changes,
    event_names,
    longest_request,
    read_filters,
    reply_filters,
    route_set_hash,
    server_ports,
    shown_endpoint,
    with_bound_ports,
)
from tests.support.route_text import BASIC, load_text

SERVER = """
DEFINE ROUTE S WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH REQUEST_TIMEOUT 5
    ADD EVENT Read WITH METHOD "GET" WITH ENDPOINT "/state/{name}" WITH SOURCE_TOPIC "state/{path.name}"
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "answers/{request_id}"
"""


def test_what_all_routes_watch_listen_on_and_are_called() -> None:
    client, server = routes = load_text(BASIC + SERVER).routes
    assert event_names(routes) == {("R", "E"), ("S", "Read"), ("S", "Ask")}
    assert (read_filters(routes), reply_filters(routes)) == (["state/+"], {"answers/+": longest_request(server)})
    assert longest_request(server) == longest_request(client) - client.config.request_timeout + 10
    assert asking(routes, "answers/1") == [("S", "Ask")]
    assert asking(routes, "state/a") == [] and asking(routes, "state/a", reads=True) == [("S", "Read")]
    assert server_ports(routes) == {0}
    assert [route.config.server_port for route in with_bound_ports(routes, {0: 81})] == [client.config.server_port, 81]
    assert [shown_endpoint("POST", port, "/a") for port in (0, 81)] == ["POST :(a free port)/a", "POST :81/a"]


def test_changes_and_the_hash_of_a_set_are_those_of_its_definitions() -> None:
    old, new = load_text(BASIC + SERVER).routes, load_text("\n" + BASIC.replace('"/x"', '"/y"')).routes
    assert changes(old, new) == "changed R; removed S"
    assert changes(new, old) == "added S; changed R"
    assert changes(old, old) == "no changes"
    assert route_set_hash(old) == route_set_hash(reversed(old)) != route_set_hash(new)
