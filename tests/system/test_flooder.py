"""One client that sends QoS 0 without a pause, to a topic that a route takes: others' messages do not wait for it."""

import threading
from pathlib import Path

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.commands import Workplace
from tests.support.http_recorder import recording

_FLOOD, _NOTES = 15_000, 3
_STEP = 1_500  # messages of the flood from one note to the next
_BETWEEN = 100
ROUTE = """DEFINE ROUTE Out WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    ADD EVENT E
        WITH SOURCE_TOPIC "flood" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""


def _flooded_until_a_note(bystander: Wire, subscriber: Wire, topics: list[str]) -> int:
    """Publish a note in the middle of the flood; return how many messages of the flood come before it."""
    seen = len(topics)
    while len(topics) < seen + _STEP:
        topics += [topic for topic, _ in subscriber.messages()]
    bystander.send(publish_packet("note", b""))
    sent = len(topics)
    while "note" not in topics[sent:]:
        topics += [topic for topic, _ in subscriber.messages()]
    return topics.index("note", sent) - sent


def test_a_message_is_delivered_in_the_middle_of_a_flood(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    place.configure(("processes: 0", "processes: 1"))
    with recording() as target:
        place.write("routes.lot", ROUTE.format(url=target.url))
        with place.serving(bridges=1) as broker:
            port = broker.port
            flooder, bystander, subscriber = (Wire(port, name) for name in ("flooder", "bystander", "subscriber"))
            subscriber.subscribe("flood")
            subscriber.subscribe("note")
            packets = publish_packet("flood", b"x" * 200) * _FLOOD
            flooding = threading.Thread(target=flooder.send, args=(packets,))
            flooding.start()
            topics: list[str] = []
            between = [_flooded_until_a_note(bystander, subscriber, topics) for _ in range(_NOTES)]
            flooding.join()
            for wire in (flooder, bystander, subscriber):
                wire.close()
            assert min(between) < _BETWEEN  # the others may be those of a test that was not given the processor
