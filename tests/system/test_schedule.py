"""EVERY: a polled API becomes messages."""

import json

import pytest

from tests.support.doors import Hosting, doors
from tests.support.http_recorder import recording

POLL = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD EVENT Price WITH EVERY "1s" WITH METHOD "GET" WITH ENDPOINT "/price/{{topic.3}}"
            WITH DESTINATION_TOPIC "price" WITH RETAIN "true" WITH PAYLOAD '{{response.json.eur}}'
"""


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_one_field_of_a_polled_api_is_published(hosting: Hosting) -> None:
    with recording() as target:
        target.answer = lambda _: (200, json.dumps({"eur": target.arrived.qsize()}).encode())
        with hosting(POLL.format(url=target.url)) as host:
            client = host.client("price", "$schedule/#")
            assert client.messages(2) == [("price", b"1"), ("price", b"2")]
            client.publish("x", b"")
        assert target.request().path == "/price/Price"
