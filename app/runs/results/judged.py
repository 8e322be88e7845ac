"""A check of one run where several runs stand beside each other: in comparisons and trends."""

from pydantic import Field

from app.documents import Document
from trainer.contract.result import Number, Relation


class JudgedNumber(Document):
    """What a check measured, and what it had to be."""

    passed: bool | None = Field(description="null: could not be judged.")
    measured: Number
    limit: Number
    relation: Relation = Field(description="How measured is held against limit: at most, equal, at least.")
    strict: bool = Field(description="The limit itself does not suffice: below it, or above it.")
