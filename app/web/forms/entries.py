"""Paginated logs, newest first: their common query parameters."""

from urllib.parse import urlencode

from pydantic import BaseModel, Field

from app.runs.ordering import LARGEST_ID


class EntriesQuery(BaseModel):
    """Filters of a log in the URL; empty means all."""

    run: str = Field("", max_length=19)
    before: int | None = Field(None, ge=1, le=LARGEST_ID)

    def address(self, before: int | None) -> str:
        """Return the query string of another page of the same entries."""
        values = {**self.model_dump(exclude={"before"}), "before": before}
        return urlencode({name: value for name, value in values.items() if value})

    def run_id(self) -> int | None:
        """Return the requested run; text that is not a number matches no run."""
        words = self.run.strip().removeprefix("#")
        if not words:
            return None
        return int(words) if words.isascii() and words.isdigit() and int(words) <= LARGEST_ID else 0
