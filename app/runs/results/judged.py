"""A check of one run where several runs are shown together: in comparisons and trends."""

from pydantic import Field

from app.documents import Document
from trainer.contract.result import Relation
from trainer.contract.strict import Number


class JudgedNumber(Document):
    """A check's measured value and its requirement."""

    passed: bool | None = Field(description="null: could not be judged.")
    measured: Number
    limit: Number
    relation: Relation = Field(description="How measured is compared with limit: at_most, equal, at_least.")
    strict: bool = Field(description="The limit itself does not pass: measured must be below it, or above it.")
