"""What a checkpoint file holds: the state of every run of a group after a round.

Where such files lie and which of them counts is the business of `fedga.store.checkpoints` and the store.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedga.common.sealed import DamagedError, seal, unseal
from fedga.engine.stack.lanes import Lane, LaneState, first_state
from fedga.engine.stack.stacked import StackedModel

_ROUND = "round"  # in the file's description, beside the order of its runs


def states_content(states: Mapping[str, LaneState], round: int | None = None) -> bytes:  # noqa: A002
    """The content of a checkpoint: states by run id after a round, in the order of their lanes."""
    order = {f"{position:06d}": run_id for position, run_id in enumerate(states)}
    return seal(joined(states), order if round is None else {**order, _ROUND: str(round)})


def joined(states: Mapping[str, LaneState]) -> dict[str, Tensor]:
    """All tensors of all runs, by names that `split` understands."""
    return {f"{run_id}/{name}": tensor for run_id, state in states.items() for name, tensor in state.items()}


def split(tensors: Mapping[str, Tensor], run_ids: Sequence[str]) -> dict[str, LaneState]:
    """States by run id, in this order; a ``KeyError`` where a tensor is of another run."""
    states: dict[str, dict[str, Tensor]] = {run_id: {} for run_id in run_ids}
    for key, tensor in tensors.items():
        run_id, _, name = key.partition("/")
        states[run_id][name] = tensor
    return dict(states)


def write_states(path: Path, states: Mapping[str, LaneState], round: int | None = None) -> None:  # noqa: A002
    """A checkpoint as a file."""
    # Bytes through Python: the library's own writer leaves a nameless file behind when it is killed.
    path.write_bytes(states_content(states, round))


def read_states(path: Path, round: int | None = None) -> dict[str, LaneState]:  # noqa: A002
    """States by run id, in the order of their lanes; ``round`` is the one that they must be of.

    A file that is damaged, gone, or of another round is a ``DamagedError``.
    """
    try:
        file = unseal(path)
    except FileNotFoundError:
        raise DamagedError(f"the checkpoint {path} is gone") from None
    except OSError as error:
        raise DamagedError(f"the checkpoint {path} cannot be read ({error.strerror})") from error
    order = dict(file.metadata)
    written = order.pop(_ROUND, None)  # version 0.1 did not write it
    if not all(position.isdigit() for position in order) or (round is not None and written not in (None, str(round))):
        raise DamagedError(f"the checkpoint {path} is of other rounds or runs")
    try:
        return split(file.tensors, [order[position] for position in sorted(order)])
    except KeyError:
        raise DamagedError(f"the checkpoint {path} is of other rounds or runs") from None


def check_states(path: Path, states: Mapping[str, LaneState], lanes: Sequence[Lane], *, with_clients: bool) -> None:
    """Refuse states that are not those of these runs: a whole file may be another one, or somebody's own."""
    if states.keys() != {lane.run.run_id for lane in lanes}:
        raise DamagedError(f"the checkpoint {path} is of other runs")
    model = StackedModel(lanes[0].model)
    for lane in lanes:
        state = states[lane.run.run_id]
        for name, expected in first_state(lane, model).items():
            if name.startswith("client.") and not with_clients:
                continue
            found = state.get(name)
            if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
                raise DamagedError(f"the checkpoint {path} does not fit the runs ({name})")
