"""Time limits as Slurm writes them: minutes, minutes:seconds, hours:minutes:seconds, and the same after days."""

import re
from typing import Final

DAYS: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,4})(?::([0-9]{1,4}))?(?::([0-9]{1,4}))?")


def seconds_of(text: str) -> int | None:
    """Return a time limit in seconds, None if it is not one; `UNLIMITED` is not a limit either."""
    found = DAYS.fullmatch(text)
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return (days * 86_400 + hours * 3_600 + minutes * 60 + seconds) or None
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        return None
    numbers = [int(part) for part in parts]
    if len(numbers) == 3:
        return (numbers[0] * 3_600 + numbers[1] * 60 + numbers[2]) or None
    return (numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)) or None
