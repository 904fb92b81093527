"""The spool of lossless routes: messages on disk until their calls have ended. SQLite lives here only.

`rows` has the table, and reads and checks what is in it; `spool` writes it, `disk_space` keeps a reserve on the disk.
"""

from amqtt_rest_bridge.spool.rows import Kept, Unreadable
from amqtt_rest_bridge.spool.spool import Spool, SpoolFullError

__all__ = ["Kept", "Spool", "SpoolFullError", "Unreadable"]
