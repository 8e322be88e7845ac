"""Evaluation counts each token once, at any number of ranks, and does not affect training."""

from pathlib import Path

import pytest
import torch

from trainer.common.distributed import Group
from trainer.common.telemetry import Telemetry
from trainer.contract.normalisation import EmptyWindowError
from trainer.contract.paths import AttemptPaths
from trainer.tokens.corpus import build_corpus
from trainer.tokens.evaluate import _local_sums, evaluate
from trainer.tokens.model import build_model

SEQUENCES = build_corpus(47, 2).validation[:40]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    telemetry = Telemetry(AttemptPaths(tmp_path), 0)
    return Group(rank=0, world_size=1, device=torch.device("cpu"), backend="none", telemetry=telemetry)


def test_tokens_are_all_counted_once(group: Group) -> None:
    found = evaluate(group, build_model(47), SEQUENCES)
    assert found.tokens == sum(map(len, SEQUENCES))
    assert 0 <= found.token_accuracy <= 1
    assert found.loss_per_token == pytest.approx(1.5, abs=0.3)


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_shares_of_ranks_add_up(group: Group, ranks: int) -> None:
    model = build_model(47).eval()
    whole = evaluate(group, model, SEQUENCES)
    parts = [_local_sums(model, SEQUENCES[rank::ranks]) for rank in range(ranks)]
    assert sum(part[2] for part in parts) == whole.tokens
    assert sum(part[1] for part in parts) / whole.tokens == whole.token_accuracy
    assert sum(part[0] for part in parts) / whole.tokens == pytest.approx(whole.loss_per_token, rel=1e-6)
    means = [part[0] / part[2] for part in parts]
    assert sum(means) / ranks != pytest.approx(whole.loss_per_token, rel=1e-6)


def test_evaluation_leaves_training_alone(group: Group) -> None:
    ends = []
    for looks in (0, 2):
        torch.manual_seed(3)
        model = build_model(47, dropout=0.2)
        for _ in range(looks):
            evaluate(group, model, SEQUENCES)
        assert model.training
        output = model(torch.zeros(1, 20, dtype=torch.int64))  # dropout draws from the global generator
        ends.append((output, torch.random.get_rng_state()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def test_nothing_to_evaluate_is_an_error(group: Group) -> None:
    with pytest.raises(EmptyWindowError, match="0 sequences with 0 tokens"):
        evaluate(group, build_model(47), [])


def test_padding_and_batches_change_nothing(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(47)
    whole = evaluate(group, model, SEQUENCES)
    monkeypatch.setattr("trainer.tokens.evaluate.BATCH", 1)
    alone = evaluate(group, model, SEQUENCES)
    assert (alone.tokens, alone.token_accuracy) == (whole.tokens, whole.token_accuracy)
    assert alone.loss_per_token == pytest.approx(whole.loss_per_token, rel=1e-6)
