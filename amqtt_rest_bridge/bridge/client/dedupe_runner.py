"""The runner of a route with DEDUPE_KEY in client mode: a call claims its key before its first try.

The broker process grants claims, for all bridge processes (`routing.claims`). A call whose key another one has waits
for its end, and holds no worker meanwhile.
"""

from functools import partial

from amqtt_rest_bridge.bridge.client.batch_runner import BatchRunner
from amqtt_rest_bridge.bridge.client.route_runner import RouteRunner
from amqtt_rest_bridge.calls.call import OpenCall, Step, Verdict
from amqtt_rest_bridge.model import HttpRequest, Route


def runner_class(route: Route) -> type[RouteRunner]:
    """Return what runs the calls of a route."""
    if any(event.dedupe_key is not None for event in route.client_events):
        return DedupeRunner
    return BatchRunner if any(event.batch_size for event in route.client_events) else RouteRunner


class DedupeRunner(BatchRunner):
    """Run the calls of a route of which some events have a DEDUPE_KEY; others may have a BATCH_SIZE."""

    def _begin(self, call: OpenCall) -> HttpRequest | None:
        if call.event.event.dedupe_key is None or call.was_seen is not None:
            return super()._begin(call)
        with self._context.parsing(len(call.message.payload)):
            verdict = call.event.check(call)  # fills its key
        if verdict is not None:
            self._follow(call, verdict)
        elif call.key is None:
            return super()._begin(call)
        elif self._begin_wait(call, for_try=False):
            self._context.claims.ask(call.key, partial(self._claimed, call))
        return None

    def _claimed(self, call: OpenCall, answer: bytes | None) -> None:
        call.was_seen = answer is not None
        if not self._resume(call):  # it was withdrawn, and has another run
            self._settle(call, None)

    def _resume(self, call: OpenCall) -> bool:
        """Go on with a call; one that a reload leaves to another definition, which may have another key, asks again."""
        if self._retired and self._is_lossless:
            self._settle(call, None)
            call.was_seen = None
        return super()._resume(call)

    def _follow(self, call: OpenCall, verdict: Verdict, also: list[int] | None = None) -> None:
        if verdict.step is not Step.AGAIN:  # before the result: a call that is dispatched again is skipped then
            self._settle(call, b"" if verdict.step is Step.DONE else None)
        super()._follow(call, verdict, also)

    def _give_back(self, call: OpenCall) -> None:
        self._settle(call, None)
        super()._give_back(call)

    def _settle(self, call: OpenCall, answer: bytes | None) -> None:
        """End the claim that a call has on its key, if it has one."""
        if call.key is not None and call.was_seen is False:
            call.was_seen = None
            self._context.claims.settle(call.key, float(call.event.event.dedupe_for), answer)
