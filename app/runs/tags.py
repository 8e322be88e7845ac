"""Tags: what one may be, and many of them in one text.

API and commands give each tag as a value of its own, exactly as it is. One text for all of them, as in fields and
addresses of pages and in exports, separates them by commas; a tag with a comma is in quotes, as in a CSV line.
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
    """Return the tags of a text, without outer blanks and without empty ones; each once, in their order.

    Raises Refused for a text longer than any tag, which the CSV reader gives up on.
    """
    rows = csv.reader([text.replace("\r", " ").replace("\n", " ")], skipinitialspace=True)
    try:
        return list(dict.fromkeys(tag.strip() for row in rows for tag in row if tag.strip()))
    except csv.Error:
        limit = csv.field_size_limit()
        raise refused(
            "tags", f"has {len(text)} characters, one tag of them more than {limit}; separate by commas"
        ) from None


def text_from_tags(tags: Sequence[str]) -> str:
    """Return tags as one text, which `tags_from_text` reads as the same tags."""
    quoted = []
    for tag in tags:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([tag])
        quoted.append(line.getvalue())
    return ", ".join(quoted)
