"""The amqtt side of the plugin: messages for its bridge, publishing at its pace, lossless routes, repairs of amqtt.

`amqtt_broker` holds every private name of amqtt that this package uses. Everything runs on the broker's loop, except
checkpoints of the spool (a thread) and what commands use before a broker starts.
"""
