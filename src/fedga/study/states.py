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


def write_states(path: Path, states: Mapping[str, LaneState], round: int | None = None) -> None:  # noqa: A002
    """States by run id after a round, in the order of their lanes."""
    order = {f"{position:06d}": run_id for position, run_id in enumerate(states)}
    tensors = {f"{run_id}/{name}": tensor for run_id, state in states.items() for name, tensor in state.items()}
    # Bytes through Python: the library's own writer leaves a nameless file behind when it is killed.
    path.write_bytes(seal(tensors, order if round is None else {**order, _ROUND: str(round)}))


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
    states: dict[str, dict[str, Tensor]] = {order[position]: {} for position in sorted(order)}
    for key, tensor in file.tensors.items():
        run_id, _, name = key.partition("/")
        if run_id not in states:
            raise DamagedError(f"the checkpoint {path} is of other rounds or runs")
        states[run_id][name] = tensor
    return dict(states)


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
