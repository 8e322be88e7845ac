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

OF_ITS_TYPE: Final = (
    "It happens only in the type of this run, not in float64: look at what is reduced or scaled differently there, "
    "such as the reduction that the engine chooses for a type and backend."
)


def explain(found: Measured) -> Diagnosis:
    """Return which mistake explains what was measured; clean if everything matched."""
    evidence = found.evidence
    if evidence is None:
        return Diagnosis(
            status="clean", causes=[], weights=None, residual=None, suggestion="", reasoning=[NOTHING_ODD], ruled_out=[]
        )
    diagnosis = diagnose(evidence)
    if not found.parity.outside:
        return diagnosis
    if diagnosis.status == "clean":
        return diagnosis.model_copy(update={"suggestion": ROUNDING})
    if found.right_in_float64:
        return diagnosis.model_copy(update={"suggestion": f"{diagnosis.suggestion} {OF_ITS_TYPE}".strip()})
    return diagnosis
