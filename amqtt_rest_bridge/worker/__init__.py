"""Any MQTT 5 broker instead of amqtt: the same routing and bridge processes behind an MQTT client.

A message is acknowledged only when its calls have ended and their results are acknowledged (for realtime routes: on
arrival), so the broker keeps what a killed worker held: `intake` decides when, `mqtt.connection` sends the PUBACK.
Workers share messages by shared subscriptions on the sessions of slots (`slots`), and slots by leases (`leases`). All
runs on one event loop; opening a socket blocks, on a thread. `reconnecting` connects again, and `service` puts the
parts together. Measured in tests/README.md (`tests/benchmarks/worker.py`).
"""
