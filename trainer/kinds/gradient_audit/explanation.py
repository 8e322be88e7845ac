"""From the evidence of an audit to its diagnosis."""

from trainer.contract.diagnosis import Diagnosis
from trainer.kinds.gradient_audit.measured import Measured


def explain(found: Measured) -> Diagnosis:
    """Return which mistake explains the gradients; clean if everything matched."""
    return Diagnosis(
        status="clean" if not found.parity.outside else "unexplained",
        causes=[],
        weights=None,
        residual=None,
        suggestion="",
    )
