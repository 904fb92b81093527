"""The form of every time that the bridge publishes, logs or fills in. Pure; any thread may use it."""

from datetime import UTC, datetime


def rfc3339(timestamp: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC, rounded to milliseconds: `2026-01-31T12:00:00.123Z`."""
    seconds, milliseconds = divmod(round(timestamp * 1000), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{milliseconds:03d}Z"
