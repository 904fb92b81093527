"""The amqtt side of the plugin: messages for its bridge, publishing at its pace, lossless routes, repairs of amqtt.

| what happens | modules, in order |
|---|---|
| a message goes to the bridge | `incoming`, `endpoint`, `bridge_session` |
| one of a lossless route | `lossless`, `acl`, `bridge_session`; after a restart the same, for rows on disk |
| the bridge publishes | `endpoint`, `publisher`, then amqtt |
| the bridge starts, dies, stops | `bridge_child`, by the messages of `control`; meanwhile `statuses` reports |
| the broker starts and stops, as a service | `configuration`, `service`, `repairs` |

`amqtt_broker` holds every private name of amqtt that this package uses. Everything runs on the broker's loop, except
checkpoints of the spool (a thread) and what commands use before a broker starts.
"""
