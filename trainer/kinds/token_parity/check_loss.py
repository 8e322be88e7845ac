"""Stage `check-loss`: the worked example in plain Python; if its numbers are wrong, no rank is started."""

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.kinds.token_parity.examples import checked
from trainer.kinds.token_parity.handover import Handover, write_document


def run(context: StageContext) -> None:
    """Check every statement and store the lines for later stages. Raises WorkedExampleError."""
    announce(context.telemetry)
    context.telemetry.phase("check", 0)
    lines = checked()
    write_document(
        Handover(context.paths).worked_example,
        [
            {
                "title": line.title,
                "formula": line.formula,
                "exact": str(line.actual),
                "expected": float(line.expected),
                "actual": float(line.actual),
            }
            for line in lines
        ],
    )
    context.telemetry.progress(len(lines), len(lines), "statements")
