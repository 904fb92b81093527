"""Three files on disk, each an SQLite database. No other room opens one.

| file | holds | module |
|---|---|---|
| the spool | messages of lossless routes until their calls have ended | `spool`, with those below |
| beside the spool, or in memory | keys of DEDUPE_KEY that were seen | `seen` |
| the file of the setting failures | failed calls and requests, for pages and retries | `failure_file` |

The spool is written by `spool`. `rows` has its table, and checks what is read from it. `keys` makes the keys of calls,
`lock` keeps other brokers away, `salvage` replaces a damaged file, `disk_space` keeps room for removals.
"""

from amqtt_rest_bridge.store.keys import BatchNumbers
from amqtt_rest_bridge.store.rows import Kept, Unreadable
from amqtt_rest_bridge.store.seen import SeenKeys
from amqtt_rest_bridge.store.spool import Spool, SpoolFullError

__all__ = ["BatchNumbers", "Kept", "SeenKeys", "Spool", "SpoolFullError", "Unreadable"]
