"""Stage `prepare`: draw the corpus and the first window, and lock the data."""

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.kinds.token_parity.handover import Handover, write_document
from trainer.kinds.token_parity.params import TokenParityParams
from trainer.tokens.corpus import length_range
from trainer.tokens.plan import WindowSampler, data_lock, token_counts


def run(context: StageContext) -> None:
    """Write the plan of the audited window."""
    announce(context.telemetry)
    context.telemetry.phase("draw", 0)
    params: TokenParityParams = context.params
    window = WindowSampler(params.shape).next_window()
    counts = token_counts(window, params.shape)
    lock = data_lock(params.shape)
    write_document(
        Handover(context.paths).plan,
        {
            "window": window,
            "token_counts": counts,
            "global_tokens": sum(map(sum, counts)),
            "data_lock": lock,
            "lengths": [length_range(rank, params.world_size) for rank in range(params.world_size)],
        },
    )
    context.telemetry.message(f"data lock {lock[:16]}, {sum(map(sum, counts))} supervised tokens in the window")
    context.telemetry.progress(1, 1, "plan")
