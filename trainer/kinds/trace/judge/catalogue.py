"""Names: every finding with the check it belongs to, and the numbers that a user may expect."""

from collections.abc import Mapping
from typing import Final

CHECKS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "synchronisations": (
        "Gradients are synchronised once per step, with the last micro-batch",
        ("extra_syncs", "sync_on_wrong_microbatch", "unsynchronised_step", "leftover_microbatches"),
    ),
    "token_weights": (
        "Every unit of a window has the same weight",
        (
            "mean_of_means",
            "rank_mean",
            "microbatch_denominator",
            "uneven_last_batch",
            "short_last_window",
            "class_weights",
            "dropped_microbatch",
            "empty_step",
            "unexplained",
        ),
    ),
    "loss_scale": (
        "The weights of all units sum to 1",
        (
            "missing_world_size",
            "extra_world_size",
            "extra_accumulation_division",
            "missing_accumulation_division",
            "local_count_as_global",
            "clipped_before_unscale",
            "loss_scales_differ",
            "unexplained",
        ),
    ),
    "gradients_agree": ("All ranks step with the same gradients", ("gradients_differ", "unreduced_parameters")),
    "parameters_agree": ("All ranks have the same parameters", ("parameters_differ",)),
    "buffers_agree": ("All ranks have the same buffers", ("buffers_differ", "buffers_moved_twice")),
    "samples": (
        "Every sample is drawn once per epoch, by one rank",
        (
            "repeated_samples",
            "missing_samples",
            "same_data_on_all_ranks",
            "same_order_every_epoch",
            "sharded_twice",
            "padded_evaluation",
        ),
    ),
    "rank_symmetry": ("All ranks do the same steps", ("unequal_steps", "unequal_forwards", "skipped_on_one_rank")),
    "schedule": ("Learning rate schedulers step once per optimizer step", ("scheduler_steps",)),
    "random_streams": (
        "Ranks draw different random numbers and start from the same weights",
        ("same_random_stream", "different_initial_weights"),
    ),
    "shared_writes": ("No file is written by two ranks", ("same_file_written",)),
    "coverage": ("What the other checks need was seen", ()),
}
"""Check -> (title, its findings), in the order they are shown."""

FINDINGS: Final[frozenset[str]] = frozenset(name for _, names in CHECKS.values() for name in names)
SEVERITIES: Final = ("wrong", "waste", "note")
"""From the gravest to the mildest."""
EXPECTABLE: Final[Mapping[str, str]] = {
    "syncs_per_step": "Synchronisations per optimizer step",
    "micro_batches_per_step": "Micro-batches per optimizer step",
    "optimizer_steps": "Optimizer steps",
    "world_size": "Ranks",
    "weight_ratio": "Largest weight of a unit divided by the smallest",
    "weight_sum": "Sum of the weights of all units",
}
"""What `--expect` knows -> title of the check."""
