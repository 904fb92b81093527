"""amqtt: which of its messages the bridge sees, publishing at its pace, lossless routes and their spool, wills, ACL.

`amqtt_broker` holds every private name of amqtt that this package uses. Everything runs on the broker's loop, except
checkpoints of the spool (a thread) and what commands use before a broker starts or as its clients. Matching and
admission are in `routing`, bridge processes in `processes`: neither imports amqtt.
"""
