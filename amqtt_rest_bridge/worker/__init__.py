"""Any MQTT 5 broker instead of amqtt: the same routing and bridge processes behind an MQTT client."""
