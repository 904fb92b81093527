"""Routes commanded by MQTT, as Coreflux's own tools do it: text commands on one topic, answers on another.

`command` and `answer` are pure: bytes to a command, an answer to bytes. `folder` has the files, `service` executes.
The MQTT sides (`broker`, `worker`) decide who may command, and bring payloads and publish answers.
"""
