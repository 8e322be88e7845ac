"""The typed retention policy, and the query of the storage page."""

import math
import re
from typing import Final
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from app.runs.errors import refused
from app.runs.requests import find_kind
from app.storage.retention import Policy

AMOUNT: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*(|[kKMGT]i?)[bB]?$")
LARGEST: Final = 2**63 - 1


class PolicyForm(BaseModel):
    """A retention policy as typed; empty fields mean no limit."""

    days: str = Field("", max_length=40)
    newest: str = Field("", max_length=40)
    most: str = Field("", max_length=40)
    kind: str = Field("", max_length=64)

    @property
    def empty(self) -> bool:
        """Whether no limit was given."""
        return not (self.days.strip() or self.newest.strip() or self.most.strip())

    def policy(self) -> Policy:
        """Return it as the policy. Raises Refused naming the field."""
        if self.kind:
            find_kind(self.kind)
        return Policy(
            max_age_days=_number("days", self.days),
            max_runs=_whole("newest", self.newest),
            max_bytes=amount("most", self.most),
            kind=self.kind or None,
        )


class PolicyApply(PolicyForm):
    """The policy with the plan that was shown."""

    plan: str = Field("", max_length=64)


class StorageQuery(PolicyForm):
    """The policy and the page of runs in the URL."""

    page: int = Field(1, ge=1, le=1_000_000)
    orphans: bool = False
    """Whether to look for orphans, which walks through the folder of every run."""

    def address(self, page: int) -> str:
        """Return the query string of another page of runs under the same policy."""
        values = {**self.model_dump(), "page": page if page > 1 else "", "orphans": ""}
        return urlencode({name: value for name, value in values.items() if value})


def _number(field: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise refused(field, f"must be a number such as 90, given {text[:40]!r}")
    return value


def _whole(field: str, text: str) -> int | None:
    value = _number(field, text)
    if value is not None and (not value.is_integer() or value > LARGEST):
        raise refused(field, f"must be a whole number such as 100, given {text[:40]!r}")
    return None if value is None else int(value)


def amount(field: str, text: str) -> int | None:
    """Return bytes from text such as `500 GB`, `20GiB` or `1000000`; None when empty. Raises Refused."""
    words = text.strip()
    if not words:
        return None
    match = AMOUNT.match(words)
    if match is None:
        raise refused(field, f"must be bytes such as 20 GiB, 500 GB or 1000000, given {text[:40]!r}")
    number, unit = match.groups()
    power = ("", "K", "M", "G", "T").index(unit[:1].upper())
    value = float(number) * float((1024 if unit.endswith("i") else 1000) ** power)
    if value > LARGEST:
        raise refused(field, f"must be at most {LARGEST} bytes, given {text[:40]!r}")
    return round(value)
