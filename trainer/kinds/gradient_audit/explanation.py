"""From the evidence of an audit to its diagnosis."""

from typing import Final

from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose
from trainer.kinds.gradient_audit.measured import Measured

NOTHING_ODD: Final = (
    "Every component matches the reference on every rank, so no weight of a unit was solved: the model is large."
)
ROUNDING: Final = (
    "In float64 the same windows match: the differences are rounding. Use dtype=float64, or tolerances that fit the "
    "size of these gradients."
)


def explain(found: Measured) -> Diagnosis:
    """Return which mistake explains what was measured; clean if everything matched."""
    evidence = found.evidence
    if evidence is None:
        return Diagnosis(
            status="clean", causes=[], weights=None, residual=None, suggestion="", reasoning=[NOTHING_ODD], ruled_out=[]
        )
    diagnosis = diagnose(evidence)
    if diagnosis.status == "clean" and found.parity.outside:
        return diagnosis.model_copy(update={"suggestion": ROUNDING})
    return diagnosis
