"""The stored documents of a mode: `history.json` and `report.json`, written by the audit and read by `verify`."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from trainer.contract.events import encodable
from trainer.contract.files import write_json_atomically

Count = Annotated[int, Field(ge=0)]


class Document(BaseModel):
    """Base: unknown fields are errors; non-finite numbers are read from their names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HistoryRow(Document):
    """One epoch of one mode."""

    epoch: int
    mode: str
    optimizer_steps: Count
    gradient_syncs: Count
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float


class Confusion(Document):
    """One cell off the diagonal, by class names."""

    true: str
    predicted: str
    count: Count


class Report(Document):
    """Test scores of one mode."""

    mode: str
    baseline_class: str
    baseline_accuracy: float
    model_test_loss: float
    model_test_accuracy: float
    confusion_matrix: list[list[Count]]
    """counts[true][predicted]"""
    top_confusions: list[Confusion]


History = TypeAdapter(list[HistoryRow])


def save_history(path: Path, rows: list[HistoryRow]) -> None:
    """Write `history.json` atomically. Raises OSError."""
    write_json_atomically(path, encodable([row.model_dump() for row in rows]))


def save_report(path: Path, report: Report) -> None:
    """Write `report.json` atomically. Raises OSError."""
    write_json_atomically(path, encodable(report.model_dump()))


def load_history(path: Path) -> list[HistoryRow]:
    """Read `history.json`. Raises OSError, pydantic.ValidationError."""
    return History.validate_json(path.read_bytes())


def load_report(path: Path) -> Report:
    """Read `report.json`. Raises OSError, pydantic.ValidationError."""
    return Report.model_validate_json(path.read_bytes())
