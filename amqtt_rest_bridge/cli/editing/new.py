"""`rest-bridge new`: write a first route with its test. Main thread."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.errors import ConfigurationError, on_one_line

DESCRIPTION = """\
Write a first route, NAME.lot, and its test, NAME.test.yaml, into the working directory. A file that exists stays.

  client   a message sends a request, and the response is published
  server   a request is published as a message
  poll     an API is asked every 15 minutes, and one field of its answer is kept
  webhook  a signed request of another service is published as a message
"""
EPILOG = """\
exit status:
  0  written
  2  a file exists or cannot be written, or the command is used wrongly

examples:
  rest-bridge new client Tickets && rest-bridge check Tickets.lot && rest-bridge test Tickets.test.yaml
"""


class First(StrEnum):
    """The routes to start from."""

    CLIENT = "client"
    SERVER = "server"
    POLL = "poll"
    WEBHOOK = "webhook"


_ROUTES = {
    First.CLIENT: """\
// A message on orders/ID/new sends a request; the response is published on orders/ID/accepted.
DEFINE ROUTE NAME WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "https://api.example.com"
        WITH ENABLE_CLIENT "true"
    ADD EVENT Send
        WITH SOURCE_TOPIC "orders/+/new"
        WITH METHOD "POST"
        // {topic.2} is the second level of the topic.
        WITH ENDPOINT "/orders/{topic.2}"
        // A text of the payload gets its quotes and escapes here.
        WITH BODY '{"customer": {value.json.customer}, "at": "{timestamp}"}'
        WITH HEADERS
            ADD Accept "application/json"
            // A credential: ADD Authorization "Bearer " + GET SECRET "api-token"
        WITH DESTINATION_TOPIC "orders/{topic.2}/accepted"
""",
    First.SERVER: """\
// POST http://127.0.0.1:8080/rooms/ROOM publishes its body on rooms/ROOM/commands.
DEFINE ROUTE NAME WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '8080'
        // Callers with a token only: WITH SERVER_TOKEN GET SECRET "caller-token"
    ADD EVENT Receive
        WITH METHOD "POST"
        // {room} is any segment of the path; {path.room} inserts it.
        WITH ENDPOINT "/rooms/{room}"
        WITH DESTINATION_TOPIC "rooms/{path.room}/commands"
""",
    First.POLL: """\
// Every 15 minutes the price is asked; one field of the answer is kept on a retained topic.
DEFINE ROUTE NAME WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "https://market.example.com"
        WITH ENABLE_CLIENT "true"
    ADD EVENT Poll
        WITH EVERY "15m"
        WITH METHOD "GET"
        WITH ENDPOINT "/price"
        WITH PAYLOAD '{response.json.data.0.eur}'
        WITH DESTINATION_TOPIC "price"
        // An answer without that field is a failure, and the last price stays.
        WITH ERROR_TOPIC "price/failed"
        WITH RETAIN "true"
""",
    First.WEBHOOK: """\
// A service posts to http://127.0.0.1:8080/hooks/shop; what it has signed is published on shop/orders.
DEFINE ROUTE NAME WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '8080'
    ADD EVENT Receive
        WITH METHOD "POST"
        WITH ENDPOINT "/hooks/shop"
        // Before others reach the port: WITH SIGNATURE_SECRET GET SECRET "shop-secret"
        WITH SIGNATURE_SECRET "change-me"
        // Of Slack, Stripe and standard webhooks: WITH SIGNATURE_SCHEME "slack"
        WITH SIGNATURE_HEADER "X-Signature"
        WITH DESTINATION_TOPIC "shop/orders"
""",
}
_TESTS = {
    First.CLIENT: """\
  - name: an order is sent, and its answer published
    message: {topic: orders/7/new, payload: {customer: Ann}}
    response: {status: 201, body: {id: 7}}
    sends:
      - method: POST
        url: https://api.example.com/orders/7
        body: {customer: Ann, at: "2026-01-31T12:00:00.000Z"}
    publishes: [{topic: orders/7/accepted, payload: {id: 7}}]
  - name: an order without a customer is not sent
    message: {topic: orders/7/new, payload: {}}
    sends: []
    publishes: [{topic: orders/7/accepted, failure: placeholder_unresolved}]
""",
    First.SERVER: """\
  - name: a command is published on the topic of its room
    request: {path: /rooms/kitchen, body: {light: "on"}}
    answers: {status: 200, body: {status: published, topic: rooms/kitchen/commands}}
    publishes: [{topic: rooms/kitchen/commands, payload: {light: "on"}}]
""",
    First.POLL: """\
  - name: one field of the answer is kept
    message: {event: Poll}
    response: {body: {data: [{eur: 87.12}]}}
    sends: [{method: GET, url: "https://market.example.com/price"}]
    publishes: [{topic: price, payload: 87.12, retain: true}]
  - name: an answer without a price is a failure
    message: {event: Poll}
    response: {body: {data: []}}
    publishes: [{topic: price/failed, failure: placeholder_unresolved}]
""",
    First.WEBHOOK: """\
  - name: a signed request is published
    request: {path: /hooks/shop, body: {id: 7}, signed: true}
    answers: {status: 200}
    publishes: [{topic: shop/orders, payload: {id: 7}}]
  - name: one without a signature is refused
    request: {path: /hooks/shop, body: {id: 7}}
    answers: {status: 401}
    publishes: []
""",
}


def run(
    kind: Annotated[First, typer.Argument(metavar="[client|server|poll|webhook]")] = First.CLIENT,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="name of the route and its files")] = "MyRoute",
) -> int:
    """Write both files, or none."""
    from amqtt_rest_bridge.language.block_reader import is_name

    if not is_name(name) or name[0] in ".-" or name.upper() in ("WITH", "ADD"):
        allowed = "A-Z a-z 0-9 _ . - and no . or - before them, but not WITH or ADD"
        raise ConfigurationError(f"{on_one_line(name)} names no route: {allowed}")
    route, test = f"{name}.lot", f"{name}.test.yaml"
    _write(route, _ROUTES[kind].replace("NAME", name))
    try:
        _write(test, f"# rest-bridge test {test}\nroutes: {route}\ntests:\n{_TESTS[kind]}")
    except ConfigurationError:
        Path(route).unlink()
        raise
    print(f"wrote {route} and {test}\nrest-bridge check {route} && rest-bridge test {test}")
    return 0


def _write(name: str, text: str) -> None:
    """Write a file that does not exist; raises `ConfigurationError` for one that does."""
    try:
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        advice = "; write another name behind the kind of route" if isinstance(error, FileExistsError) else ""
        raise ConfigurationError(f"cannot write {name}: {error.strerror or error}{advice}") from error
