"""The bridge process: HTTP out and in, beside the broker. Nothing here knows amqtt or asyncio."""
