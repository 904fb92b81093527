"""What is on disk: messages of lossless routes until their calls have ended, failures. SQLite lives here only.

`rows` has the table, and reads and checks what is in it; `spool` writes it. `keys` makes the keys of calls, `lock`
keeps other brokers away, `salvage` repairs a damaged file, `disk_space` keeps a reserve on the disk. `seen` has the
keys of DEDUPE_KEY, `failure_file` the failures that are kept.
"""

from amqtt_rest_bridge.store.keys import BatchNumbers
from amqtt_rest_bridge.store.rows import Kept, Unreadable
from amqtt_rest_bridge.store.seen import SeenKeys
from amqtt_rest_bridge.store.spool import Spool, SpoolFullError

__all__ = ["BatchNumbers", "Kept", "SeenKeys", "Spool", "SpoolFullError", "Unreadable"]
