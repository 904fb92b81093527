"""Routes commanded by MQTT, as Coreflux's own tools do it: text commands on one topic, answers on another.

`command` is pure: bytes to a command, an answer to bytes. `execution` does what it says, by files; `service` queues.
The MQTT sides (`broker`, `group`) decide who may command, bring payloads and publish answers.
"""
