"""The table of state changes: what it allows, and that it refuses everything else."""

import pytest

from app.runs.states import FINAL, MOVES, REASONS, ForbiddenMove, Reason, State, check_move


def test_final_states_never_move() -> None:
    for final in FINAL:
        assert not MOVES[final]
        assert final.is_final
        for target in State:
            with pytest.raises(ForbiddenMove):
                check_move(final, target, Reason.COMPLETED)


def test_every_state_reachable_from_queued() -> None:
    seen, todo = {State.QUEUED}, [State.QUEUED]
    while todo:
        for target in MOVES[todo.pop()] - seen:
            seen.add(target)
            todo.append(target)
    assert seen == set(State)


def test_every_reason_belongs_to_one_state() -> None:
    owners = {reason: [state for state, reasons in REASONS.items() if reason in reasons] for reason in Reason}
    assert all(len(states) == 1 for states in owners.values()), owners


def test_cancelled_never_becomes_succeeded() -> None:
    check_move(State.STOPPING, State.CANCELLED, Reason.CANCELLED_BY_USER)
    with pytest.raises(ForbiddenMove):
        check_move(State.STOPPING, State.SUCCEEDED, Reason.COMPLETED)


def test_reason_only_with_final_state() -> None:
    check_move(State.RUNNING, State.STOPPING, None)
    with pytest.raises(ForbiddenMove):
        check_move(State.RUNNING, State.STOPPING, Reason.HANG)
    with pytest.raises(ForbiddenMove):
        check_move(State.RUNNING, State.FAILED, None)
    with pytest.raises(ForbiddenMove):
        check_move(State.RUNNING, State.FAILED, Reason.COMPLETED)
