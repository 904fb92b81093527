"""amqtt: which of its messages the bridge sees, publishing at its pace, lossless routes, its defects and their repairs.

`amqtt_broker` holds every private name of amqtt that this package uses. Everything runs on the broker's loop, except
checkpoints of the spool (a thread) and what commands use before a broker starts. Matching and admission are in
`routing`, bridge processes in `processes`: neither imports amqtt.
"""
