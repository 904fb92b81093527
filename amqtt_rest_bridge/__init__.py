"""An amqtt plugin that turns an MQTT broker into an HTTP bridge."""
