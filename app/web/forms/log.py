"""Filter of a run's log in the URL."""

from pydantic import BaseModel, Field

from app.runs.telemetry.cursor import LONGEST, owner
from app.web.runlog.lines import LogFilter


class LogQuery(BaseModel):
    """Filter of the log, and the start of the stream."""

    after: str = Field("", max_length=LONGEST)
    stage: str = Field("", max_length=64)
    rank: str = Field("", max_length=9)
    stream: str = Field("", max_length=9)

    def filter(self) -> LogFilter:
        """Return the filter; a rank that is not a number means all, an unknown stream everything."""
        rank = int(self.rank) if self.rank.isascii() and self.rank.isdigit() and len(self.rank) < 7 else None
        stream = self.stream if self.stream in ("messages", "stdout", "stderr") else ""
        return LogFilter(stage=self.stage, rank=rank, stream=stream)

    def owner(self, run_id: int) -> str:
        """Return the owner of a cursor of this part of a run's log."""
        wanted = self.filter()
        return owner("page", run_id, wanted.stage, wanted.rank, wanted.stream)
