"""The admin port of a bridge process: metrics, health, the last calls, a live stream, and the status page."""
