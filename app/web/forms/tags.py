"""Tags in one text field: separated by commas; a tag with a comma of its own stands in quotes, as in a CSV line."""

import csv
import io
from collections.abc import Sequence

from app.runs.errors import refused


def tags_from_text(text: str) -> list[str]:
    """Return the tags of a field, without outer blanks and without empty ones; each once, in their order.

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
    """Return tags as a field shows them, so that reading the field again gives the same tags."""
    quoted = []
    for tag in tags:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([tag])
        quoted.append(line.getvalue())
    return ", ".join(quoted)
