"""Limits of the results of this kind."""

from collections.abc import Iterable

from trainer.contract.nodes import network_limits
from trainer.contract.placement import not_validated
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.params import CifarParams


def limits(params: CifarParams, modes: list[ModeFacts], nodes: Iterable[str]) -> list[str]:
    """Return the limits of the result of a run on these nodes, one or two sentences each."""
    run = modes[0].run
    found = [
        "It shows how often this training synchronised. Other models and optimizers are not covered.",
        "Accuracy and loss describe this short recipe on this data source; they say nothing about model quality.",
        "Fewer synchronisations do not guarantee a faster run: the times are valid for this hardware and this run.",
        "The profiler sampled some windows of rank 0; only the hook counted all of them.",
        "Dividing micro-batch means by their number is correct only for equal sizes; see kind token-parity otherwise.",
    ]
    if len(modes) > 1:
        found.append("Weights may differ between the modes in the last bits; the audit compares counts, not weights.")
    if params.data == "synthetic":
        found.append(
            "The images are generated patterns, not photographs; accuracy on them says nothing about CIFAR-10."
        )
    if params.data == "cifar10":
        found.append("The CIFAR-10 page states no licence; check its terms before any commercial use.")
    return [*found, *network_limits(nodes), *not_validated(run.device, run.backend)]
