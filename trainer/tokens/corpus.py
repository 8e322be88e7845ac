"""Sequences of four symbols from a seeded Markov chain, one pool of lengths per rank; standard library only."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

SYMBOLS = 4
PADDING = 4
START = 5
EMBEDDINGS = 6
"""Four symbols, padding and the start symbol."""
SHORTEST, LONGEST = 16, 128
POOL_SIZE = 512
"""Training sequences per rank."""
VALIDATION_SIZE, TEST_SIZE = 128, 256
FORMAT = "token-corpus/1"
"""Part of the digest: changing the recipe changes the data."""

Sequence4 = tuple[int, ...]
"""One sequence of symbols 0..3; its length equals its number of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All sequences of a run. Training ids number the pools in order: id = rank * POOL_SIZE + position in the pool."""

    pools: tuple[tuple[Sequence4, ...], ...]
    validation: tuple[Sequence4, ...]
    test: tuple[Sequence4, ...]

    def sequence(self, identity: int) -> Sequence4:
        """Return the training sequence with this id."""
        return self.pools[identity // POOL_SIZE][identity % POOL_SIZE]

    def digest(self) -> str:
        """Return the SHA-256 over every symbol and every boundary."""
        state = hashlib.sha256(FORMAT.encode())
        for name, part in self._parts():
            state.update(f"\n{name} {len(part)}\n".encode())
            state.update(b"\n".join(bytes(sequence) for sequence in part))
        return state.hexdigest()

    def _parts(self) -> Iterator[tuple[str, tuple[Sequence4, ...]]]:
        yield from ((f"pool {rank}", pool) for rank, pool in enumerate(self.pools))
        yield "validation", self.validation
        yield "test", self.test


def length_range(rank: int, world_size: int) -> tuple[int, int]:
    """Return the shortest and longest length in a rank's pool, both inclusive.

    Two ranks: 16..64 and 65..128. More: 16..128 in consecutive ranges of nearly equal width, shortest first.
    """
    if world_size == 2:
        return (SHORTEST, 64) if rank == 0 else (65, LONGEST)
    width, wider = divmod(LONGEST - SHORTEST + 1, world_size)
    first = SHORTEST + rank * width + min(rank, wider)
    return first, first + width + (rank < wider) - 1


@cache
def build_corpus(seed: int, world_size: int) -> Corpus:
    """Return the corpus; every pool has its own generator, so it does not depend on the other pools."""
    rows = _transitions(seed)
    return Corpus(
        pools=tuple(
            _draw(f"{seed}/train/{rank}/{world_size}", rows, POOL_SIZE, length_range(rank, world_size))
            for rank in range(world_size)
        ),
        validation=_draw(f"{seed}/validation", rows, VALIDATION_SIZE, (SHORTEST, LONGEST)),
        test=_draw(f"{seed}/test", rows, TEST_SIZE, (SHORTEST, LONGEST)),
    )


def transition_matrix(seed: int) -> list[list[float]]:
    """Return the seeded 4x4 matrix: row = current symbol, column = next symbol; rows sum to 1."""
    generator = random.Random(f"{seed}/matrix")
    rows = [[generator.expovariate(1.0) for _ in range(SYMBOLS)] for _ in range(SYMBOLS)]
    return [[weight / sum(row) for weight in row] for row in rows]


def _transitions(seed: int) -> list[list[float]]:
    return [list(accumulate(row)) for row in transition_matrix(seed)]


def _draw(
    name: str, cumulative: Sequence[Sequence[float]], count: int, lengths: tuple[int, int]
) -> tuple[Sequence4, ...]:
    generator = random.Random(name)
    return tuple(_walk(generator, cumulative, generator.randint(*lengths)) for _ in range(count))


def _walk(generator: random.Random, cumulative: Sequence[Sequence[float]], length: int) -> Sequence4:
    symbols = [generator.randrange(SYMBOLS)]
    while len(symbols) < length:
        one, two, three, _ = cumulative[symbols[-1]]
        draw = generator.random()
        symbols.append((draw >= one) + (draw >= two) + (draw >= three))
    return tuple(symbols)
