"""What happens to a message: match, admit, count and report. No MQTT library, HTTP, process or disk here."""
