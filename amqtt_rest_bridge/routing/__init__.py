"""What happens to a message: match, admit, count and report. Knows no MQTT library, HTTP, process or disk."""
