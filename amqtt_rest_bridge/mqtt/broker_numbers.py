"""`BrokerNumbers`: what the broker's side of the plugin counts, which only the bridge can show. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BrokerNumbers:
    """What the endpoint publishes on its own topic.

    Args:
        dropped: Messages that were dropped while the bridge was away, since too many waited.
        restarts: How often the bridge was started again.
        spool: Messages on disk, by lossless route; None without the setting `spool`, and for a worker.
        refusing: Why the spool refuses messages, None while it keeps them.
        errors: Errors of routes since the last numbers: route, code, sentence.
    """

    dropped: int = 0
    restarts: int = 0
    spool: Mapping[str, int] | None = None
    refusing: str | None = None
    errors: Sequence[tuple[str, str, str]] = field(default=())
