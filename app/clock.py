"""Time as the product stores and shows it: aware datetimes in UTC, RFC 3339 text outside."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the present moment in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime | None) -> str | None:
    """Return `moment` as RFC 3339 with milliseconds, ending in Z; None for None."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
