"""What a user's network is tried for before it trains: mapping over copies, buffers that move, randomness."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedga.common.mapping import why_not_mapped
from fedga.common.tracing import format_error
from fedga.engine.stack.layers import MaskedBatchNorm
from fedga.errors import FedGAError

if TYPE_CHECKING:
    from fedga.engine.stack.stacked import StackedModel


def check(model: StackedModel, input_shape: tuple[int, ...]) -> None:
    """Refuse a network that cannot be run for several clients at once, or that draws from the global generator."""
    params, buffers, inputs, *rest = model.made_up(2, 2, input_shape)
    if model.moving is None:
        _check_own_buffers(model, input_shape)
    model.module.train()
    try:
        with torch.no_grad():
            if model.moving:
                model.evaluate(params, buffers, inputs[0])
            else:
                model.train(params, buffers, inputs, *rest)
    except RuntimeError as error:
        if "randomness" in str(error):
            raise _draws_at_random() from error
        words = str(error).splitlines()[0].rstrip(".")
        unknown = f"fails in torch.func.vmap ({words}): write it with torch alone"
        reason = why_not_mapped(error, _files(model)) or unknown
        raise FedGAError(f"the model cannot be run for several clients at once, it {reason}") from error
    model.compare_by_hand(input_shape)


def is_by_hand(model: StackedModel, input_shape: Sequence[int]) -> bool:
    """Whether a network's own ways are its `forward`: somebody may have changed a layer of it."""
    _, buffers, inputs, mask, keys = model.made_up(2, 3, tuple(input_shape))
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(inputs)

    params, inputs = drawn(2, model.params.total), drawn(*inputs.shape)
    logits = torch.stack([model.evaluate_one(*each)[0] for each in zip(params, buffers, inputs, strict=True)])
    direction = drawn(*logits.shape)

    pairs = [(model.by_hand(model.params.views(params), inputs), logits)] if model.by_hand is not None else []
    if model.gradient_by_hand is not None:
        found, views = torch.zeros_like(params), (model.params.views(params), inputs, lambda logits: direction)
        model.gradient_by_hand(*views, model.params.views(found))
        with torch.enable_grad():
            leaf = params.requires_grad_()
            outputs = model.train(leaf, buffers, inputs, mask, keys)[0][0]
            pairs.append((found, torch.autograd.grad((outputs * direction).sum(), leaf)[0]))
    return all(torch.allclose(one, other, 1e-3, 1e-4 * float(other.abs().amax())) for one, other in pairs)


def _check_own_buffers(model: StackedModel, input_shape: tuple[int, ...]) -> None:
    """Find the buffers that move; where there are any, a whole step shows what else would fail in training."""
    tensors = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    params, buffers = model.params.flatten(tensors), model.buffers.flatten(tensors).to(model.dtype)
    # From 0 to 1, as pixels are: what a network looks up by its inputs has an entry 0.
    _, _, blank, mask, keys = model.made_up(1, 3, input_shape)
    inputs = torch.rand(blank.shape, generator=torch.Generator().manual_seed(0)).to(blank)
    before = torch.get_rng_state()
    try:
        model.found_moving(find_moving(model, params, buffers, inputs[0], mask[0]))
        if model.moving:
            given = (params[None], buffers[None], inputs, mask, keys)
            model.gradient(*given, lambda outputs: outputs.logits.sum(), torch.empty_like(params[None]))
    except (FedGAError, MemoryError):
        raise
    except Exception as error:
        home = next(iter(_files(model)), None)
        raise FedGAError(f"the model fails in a training step, {format_error(error, home)}: correct it") from error
    if model.moving and not torch.equal(before, torch.get_rng_state()):
        raise _draws_at_random()


@torch.no_grad()
def find_moving(model: StackedModel, params: Tensor, buffers: Tensor, inputs: Tensor, mask: Tensor) -> tuple[str, ...]:
    """Which values a training step of one copy changes, in place or by assignment; the batch has no padding."""
    model.module.train()
    there = dict(model.module.named_buffers())
    given = {name: value.clone() for name, value in (there | model.buffers.views(buffers)).items()}
    before = {name: value.clone() for name, value in given.items()}
    key = torch.zeros((), dtype=torch.int64, device=params.device)
    with torch.random.fork_rng(devices=[]):
        _, after = model.train_one(model.params.views(params), dict(given), inputs, mask, key)
    model.context.forget()
    for name in dict(model.module.named_buffers()).keys() - there.keys():
        raise FedGAError(
            f"the model makes its buffer {name} while it trains, so that clients would share it: give it its first "
            f'values in __init__, as in model.register_buffer("{name.rpartition(".")[2]}", torch.zeros(3))'
        )
    moving = []
    for name, value in after.items():
        # A value may be written to and stay what it is for once: its version tells.
        moved = value is not given[name] or value._version or not torch.equal(value, before[name])
        if moved and not isinstance(model.module.get_submodule(name.rpartition(".")[0]), MaskedBatchNorm):
            _check_moved(model, name, before[name], value)
            moving.append(name)
    return tuple(moving)


def _check_moved(model: StackedModel, name: str, before: Tensor, after: Tensor) -> None:
    if after.shape != before.shape:
        raise FedGAError(
            f"the model's buffer {name} changes its shape in training, from {list(before.shape)} to "
            f"{list(after.shape)}, and the server averages tensors of one shape: keep its shape"
        )
    if name not in model.buffers.shapes:
        raise FedGAError(
            f"the model's buffer {name} changes in training and is {before.dtype}, which the server cannot average "
            "over clients: make it a float, as in torch.zeros(())"
        )


def _files(model: StackedModel) -> list[Path]:
    """Where the classes of its layers are written, but for PyTorch's own."""
    homes = {type(module).__module__ for module in model.module.modules()}
    found = [getattr(sys.modules.get(home), "__file__", None) for home in homes if not home.startswith("torch.")]
    return [Path(file) for file in found if file]


def _draws_at_random() -> FedGAError:
    return FedGAError(
        "the model draws random numbers outside torch.nn.Dropout layers, so that a run would depend on what ran before "
        "it: use nn.Dropout (or 1d, 2d, 3d) for them"
    )
