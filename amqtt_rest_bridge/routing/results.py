"""Results and failures of calls on their way to the publisher, which hold the delivery of their message."""

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import failure_payload, failure_topic
from amqtt_rest_bridge.model import Message, Publication
from amqtt_rest_bridge.routing.calls import NO_DELIVERY, Delivery, Listening, PublisherPort, ReleaseCredits


class ResultPublisher:
    """Publish what calls result in; the broker's loop alone."""

    def __init__(self, publisher: PublisherPort) -> None:
        self._publisher = publisher

    def put(
        self, publication: Publication, hops: int, delivery: Delivery, release_credits: ReleaseCredits | None
    ) -> None:
        """Queue a publication; its delivery is held until it has been published."""
        if delivery is not NO_DELIVERY:  # then it has room: the source bounds what it leaves unacknowledged
            delivery.hold()
            release_credits = _releasing(delivery, release_credits)
        self._publisher.put(publication, hops, release_credits)

    def put_failure(
        self,
        listening: Listening,
        message: Message,
        failure: CallError,
        hops: int,
        delivery: Delivery,
        *,
        has_room: bool = False,
    ) -> None:
        """Queue the failure payload of a message, where its event names a topic for it.

        With `has_room` it is queued however long the queue is: for admitted messages, of which there are few enough.
        """
        topic = failure_topic(listening.event, message)
        if topic is not None:
            kept = message.payload if listening.event.failure_payload else None
            payload = failure_payload(*listening.name, message.topic, message.timestamp, failure, None, kept)
            self.put(Publication(topic, payload), hops + 1, delivery, _no_credits if has_room else None)


def _releasing(delivery: Delivery, release_credits: ReleaseCredits | None) -> ReleaseCredits:
    def published(count: int) -> None:
        if release_credits is not None:
            release_credits(count)
        delivery.release()

    return published


def _no_credits(_count: int) -> None:
    """No-op default: the publication spent no credits, but has room as if it had."""
