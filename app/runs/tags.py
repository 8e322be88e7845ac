"""Tags: their rules, and several tags in one text.

API and commands pass each tag as a separate value, unchanged. One text for several tags, as in form fields, page URLs
and exports, separates them by commas; a tag with a comma is quoted, as in a CSV line.
"""

import csv
import io
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from app.runs.errors import refused
from app.runs.texts import plain_text

MAX_TAGS: Final = 20


def distinct(tags: list[str]) -> list[str]:
    """Return tags sorted, each once. Raises ValueError for one without a visible character."""
    if not all(tags):
        raise ValueError("a tag needs at least one visible character")
    return sorted(set(tags))


Tag = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(plain_text)]
Tags = Annotated[list[Tag], Field(max_length=MAX_TAGS), AfterValidator(distinct)]


def tags_from_text(text: str) -> list[str]:
    """Return the tags of a text, stripped, without empty ones; each once, in order.

    Raises Refused for a text that the CSV reader rejects because a tag is too long.
    """
    rows = csv.reader([text.replace("\r", " ").replace("\n", " ")], skipinitialspace=True)
    try:
        return list(dict.fromkeys(tag.strip() for row in rows for tag in row if tag.strip()))
    except csv.Error:
        limit = csv.field_size_limit()
        raise refused(
            "tags", f"has {len(text)} characters and a tag of more than {limit}; separate tags by commas"
        ) from None


def text_from_tags(tags: Sequence[str]) -> str:
    """Return tags as one text, the inverse of `tags_from_text`."""
    quoted = []
    for tag in tags:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([tag])
        quoted.append(line.getvalue())
    return ", ".join(quoted)
