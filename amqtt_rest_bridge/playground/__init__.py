"""What a definition would do, found in a process of its own: `python -m amqtt_rest_bridge.playground`."""
