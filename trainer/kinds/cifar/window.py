"""The arithmetic of accumulation windows: which sizes work together, and the message if they do not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A parameter that cannot work with the others."""

    field: str
    reason: str


def window_refusal(*, train_size: int, batch_size: int, world_size: int, accum_steps: int) -> Refusal | None:
    """Return why an epoch is not a whole number of full windows, or None if it is.

    Each micro-batch mean is divided by `accum_steps`, so a short micro-batch would be over-weighted and a short
    window under-weighted; both are rejected.
    """
    across = batch_size * world_size
    window = across * accum_steps
    if train_size < window:
        reason = (
            f"train_size {train_size} is smaller than one window: batch_size {batch_size} x world_size {world_size} x "
            f"accum_steps {accum_steps} = {window}; use at least {window} images, or a smaller window"
        )
        return Refusal(field="train_size", reason=reason)
    if train_size % across:
        reason = (
            f"train_size {train_size} is not a multiple of batch_size {batch_size} x world_size {world_size} = "
            f"{across}, so a micro-batch would be short; nearest that work with accum_steps {accum_steps}: "
            f"{_either(nearest_multiples(train_size, window))}"
        )
        return Refusal(field="train_size", reason=reason)
    micro_batches = train_size // across
    if micro_batches % accum_steps:
        reason = (
            f"accum_steps {accum_steps} does not divide the {micro_batches} micro-batches per rank and epoch "
            f"(train_size {train_size} / (batch_size {batch_size} x world_size {world_size})): the last window would "
            f"have {micro_batches % accum_steps} and be under-weighted; nearest accum_steps that work: "
            f"{_either(nearest_divisors(micro_batches, accum_steps))}; or train_size "
            f"{_either(nearest_multiples(train_size, window))}"
        )
        return Refusal(field="accum_steps", reason=reason)
    return None


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the positive multiples of `unit` just below and above `value`, which is none itself."""
    below = value // unit * unit
    return [number for number in (below, below + unit) if number > 0]


def nearest_divisors(value: int, near: int) -> list[int]:
    """Return the divisors of `value` just below and above `near`, which is none itself."""
    divisors = [number for number in range(1, value + 1) if value % number == 0]
    below = [number for number in divisors if number < near]
    above = [number for number in divisors if number > near]
    return below[-1:] + above[:1]


def _either(numbers: list[int]) -> str:
    return " or ".join(str(number) for number in numbers)
