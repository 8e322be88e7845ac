"""What a result of this kind does not show."""

from trainer.contract.placement import not_validated
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.params import CifarParams


def limits(params: CifarParams, modes: list[ModeFacts]) -> list[str]:
    """Return the limits of this run's result, one sentence or two each."""
    run = modes[0].run
    found = [
        "It shows how often this training synchronised, nothing about other models, other optimizers or several nodes.",
        "Accuracy and loss describe this short recipe on this data source; they are no claim of quality.",
        "Fewer synchronisations are no promise of speed: the times are those of this machine and this run.",
        "The second witness saw the sampled windows of rank 0, not every window; the hook counted all of them.",
        "Dividing micro-batch means by their number is right for equal sizes only; see kind token-parity for the rest.",
    ]
    if len(modes) > 1:
        found.append("Weights may differ between the modes in the last bits; the audit compares counts, not weights.")
    if params.data == "synthetic":
        found.append("The images are generated patterns, no photographs; accuracy on them says nothing about CIFAR-10.")
    if params.data == "cifar10":
        found.append("The CIFAR-10 page states no licence; its terms must be checked before any commercial use.")
    return found + not_validated(run.device, run.backend)
