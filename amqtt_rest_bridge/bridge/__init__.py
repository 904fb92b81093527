"""The bridge process: HTTP out and in, beside the broker. Neither amqtt nor asyncio is used here."""
