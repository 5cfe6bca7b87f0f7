"""Many copies of one network as one tensor: parameters ``[copies, parameters]``, inputs ``[copies, samples, ...]``."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd

from fedga.algorithms.parameters import Layout, Parameters
from fedga.engine.gpu.layers import StackedConv2d
from fedga.engine.stack.layers import KeyedDropout, MaskedBatchNorm, keeps_own_buffers, prepare_for_padding
from fedga.engine.stack.trial import find_moving, is_by_hand
from fedga.errors import FedGAError
from fedga.models.standardized import StandardizedLinear


class Outputs(NamedTuple):
    """What a training pass gives a loss."""

    logits: Tensor  # [copies, samples, classes]
    features: Tensor | None  # [copies, samples, features], where asked for
    params: Tensor | None  # [copies, parameters] that the logits depend on, where features are asked for


Head = Callable[[Tensor, Tensor], Tensor]  # features and params of all copies -> logits
Passed = tuple[tuple[Tensor, ...], Tensor]  # logits, with features where they are kept, and the buffers afterwards


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def float_buffers(module: nn.Module) -> dict[str, Tensor]:
    """What a copy has of its own besides what is trained: running statistics and frozen parameters.

    Counters and index tables are the same for all copies.
    """
    frozen = {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return frozen | {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


class StackedModel:
    """Runs a network for many parameter vectors at once. Holds no parameters itself."""

    def __init__(self, module: nn.Module) -> None:
        prepared, self.context = prepare_for_padding(module)
        self.params, self.buffers = Parameters(prepared), Layout(float_buffers(prepared))
        frozen = len(self.params.shapes) < len(list(prepared.parameters()))
        self.module = prepared.requires_grad_(False)
        self.draws_at_random = self._has(KeyedDropout)
        self.has_convolutions = self._has(_ConvNd | StackedConv2d)
        # Measured: convolutions of 8 channels and more take half to nine tenths of the time this way, LeNet's 6 longer.
        widths = [layer.weight.shape[0] for layer in prepared.modules() if isinstance(layer, StackedConv2d)]
        self._may_be_channels_last = bool(widths) and all(width >= 8 for width in widths)
        self._needs_context = self.draws_at_random or self._has(MaskedBatchNorm)
        # What layers of the user's own change in training besides what is trained; None until a batch has shown it.
        self.moving: tuple[str, ...] | None = None if frozen or keeps_own_buffers(prepared) else ()
        # A network may bring its own way of running many copies; see `fedga.models.mlp`. A subclass has to bring its
        # own: what it changes in `forward`, an inherited one would not know of.
        own = {} if frozen or self._has(StandardizedLinear) else vars(type(prepared))
        by_hand = [own[name].__get__(prepared) if name in own else None for name in ("stacked", "stacked_gradient")]
        self.by_hand: Callable[..., Tensor] | None = by_hand[0]
        self.gradient_by_hand: Callable[..., None] | None = by_hand[1]
        self._is_compared = self.by_hand is None and self.gradient_by_hand is None
        self._keeps_features = False
        self._takes_channels_last: bool | None = None  # None until pictures have shown it
        self.stands_still: frozenset[str] = getattr(module, "stands_still", frozenset())  # by the algorithm's wish
        if not self.params.total:
            raise FedGAError("the model has no trainable parameters, or `moves` names none: there is nothing to train")
        if any(not parameter.is_floating_point() for parameter in prepared.parameters()):
            raise FedGAError("the model has parameters that are not floating point: fedga trains float parameters only")

    def found_moving(self, names: tuple[str, ...]) -> None:
        """Note which buffers a training step moves."""
        self.moving = names
        if names:
            self.by_hand = self.gradient_by_hand = None  # which know nothing of buffers

    def compare_by_hand(self, input_shape: Sequence[int]) -> None:
        """Leave a network's own ways of running copies aside where they are not its `forward`; once."""
        if not self._is_compared:
            self._is_compared = True
            if not is_by_hand(self, input_shape):
                self.by_hand = self.gradient_by_hand = None

    def made_up(self, copies: int, samples: int, input_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Parameters, buffers, inputs, mask and dropout keys for a trial."""
        like = next(self.module.parameters())
        params, buffers = like.new_zeros(copies, self.params.total), like.new_ones(copies, self.buffers.total)
        inputs, mask = like.new_zeros(copies, samples, *input_shape), like.new_ones(copies, samples)
        return params, buffers, inputs, mask, like.new_zeros(copies, dtype=torch.int64)

    def saved_bytes(self, input_shape: tuple[int, ...]) -> int:
        """Bytes of activations that the backward pass of one more sample needs."""

        def saved(samples: int) -> int:
            total = 0

            def count(tensor: Tensor) -> Tensor:
                nonlocal total
                total += tensor.nbytes
                return tensor

            params, *rest = self.made_up(1, samples, input_shape)
            self.module.train()
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                self.train(params.requires_grad_(), *rest)
            return total

        return max(saved(3) - saved(2), torch.Size(input_shape).numel() * 4)

    def to(self, device: torch.device) -> Self:
        self.module.to(device)
        if device.type != "cpu" and getattr(self.module, "gradient_on_cpu_only", False):
            self.gradient_by_hand = None
        return self

    def _has(self, kind: Any) -> bool:
        return any(isinstance(module, kind) for module in self.module.modules())

    @property
    def adds_gradients(self) -> bool:
        """Whether `gradient` can add to what is there: a momentum then takes in a gradient that never exists alone."""
        return self.gradient_by_hand is not None and not self._needs_context and self.moving is not None

    @property
    def moving_buffers(self) -> tuple[str, ...]:
        """Names of the buffers, and frozen parameters, that the user's own layers change in training; after `check`."""
        return self.moving or ()

    @cached_property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def flatten(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Parameter and buffer vector of an ordinary module of the same kind."""
        buffers = self.buffers.flatten(float_buffers(module)).to(self.dtype)
        return self.params.flatten(trained_parameters(module)), buffers

    @torch.no_grad()
    def unflatten(self, params: Tensor, buffers: Tensor, module: nn.Module) -> None:
        """Write one copy's vectors into an ordinary module."""
        values = self.params.views(params) | self.buffers.views(buffers)
        for name, tensor in (trained_parameters(module) | float_buffers(module)).items():
            tensor.copy_(values[name])

    def keep_features(self) -> None:
        """From now on forward passes can give the input of the last linear layer."""
        if self._keeps_features:
            return
        if self.params.head_layer is None:
            raise FedGAError(
                "the model has no linear layer whose input the algorithm could take as features: end it with "
                "torch.nn.Linear"
            )
        # No closure: a copy of the network has a context of its own.
        head = self.module.get_submodule(self.params.head_layer)
        head.register_forward_hook(self.context.keep_features)
        self._keeps_features = True

    def _call(self, state: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, ...]:
        """Logits, and features where they are kept."""
        logits: Tensor = functional_call(self.module, state, (inputs,))
        if not self._keeps_features:
            return (logits,)
        features, output = self.context.features, self.context.logits
        self.context.features = self.context.logits = None
        if features is None or output is not logits:
            raise FedGAError(
                f"the model does not return the output of {self.params.head_layer}, the last linear layer that its "
                "__init__ makes, whose input the algorithm takes as features: make its output layer the last one"
            )
        return logits, features

    def _by_pixel(self, inputs: Tensor) -> Tensor:
        """One copy's pictures, the channels of a pixel side by side where convolutions on a CPU are faster that way."""
        if not self._may_be_channels_last or inputs.dim() != 4 or inputs.is_cuda:
            return inputs
        by_pixel = inputs.contiguous(memory_format=torch.channels_last)
        if self._takes_channels_last is None:
            self._takes_channels_last = self._evaluates(by_pixel[:2])
        return by_pixel if self._takes_channels_last else inputs

    def _evaluates(self, inputs: Tensor) -> bool:
        """Whether such inputs get through the network: ``x.view(len(x), -1)`` refuses all layouts but the usual one."""
        params, buffers, *_ = self.made_up(1, 1, inputs.shape[1:])
        was_training = self.module.training
        try:
            self.evaluate_one(params[0], buffers[0], inputs)
        except RuntimeError:
            return False
        finally:
            self.module.train(was_training)
        return True

    def forward_one(self, params: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Logits of one copy in evaluation mode, differentiable and vmappable: ``[parameters], [samples, ...]``."""
        return self.evaluate_one(params, buffers, inputs)[0]

    def evaluate_one(self, params: Tensor, buffers: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
        self.module.eval()
        state = self.params.views(params) | self.buffers.views(buffers)
        if self.moving != ():  # evaluation moves nothing
            state |= {name: state[name].clone() for name in self.buffers.shapes}
        return self._call(state, inputs)

    def evaluate(self, params: Tensor, buffers: Tensor, inputs: Tensor, head: Head | None = None) -> Tensor:
        """Logits ``[copies, samples, classes]`` in evaluation mode; ``inputs`` shared, ``[samples, ...]``."""
        return self.evaluate_each(params, buffers, inputs.expand(len(params), *inputs.shape), head, None)

    def evaluate_each(
        self, params: Tensor, buffers: Tensor, inputs: Tensor, head: Head | None = None, axis: int | None = 0
    ) -> Tensor:
        """Like `evaluate` with inputs ``[copies, samples, ...]``, of its own for every copy unless ``axis`` is None."""
        self.compare_by_hand(inputs.shape[2:])
        if self.by_hand is not None and head is None and len(params) > 1:
            return self.by_hand(self.params.views(params), inputs)
        return self.evaluate_with_features(params, buffers, inputs, head, axis)[0]

    def evaluate_with_features(
        self, params: Tensor, buffers: Tensor, inputs: Tensor, head: Head | None = None, axis: int | None = 0
    ) -> tuple[Tensor, ...]:
        """Like `evaluate_each`, with the features ``[copies, samples, features]`` where they are kept."""
        if len(params) == 1:
            one = self.evaluate_one(params[0], buffers[0], self._by_pixel(inputs[0]))
            found = tuple(part.unsqueeze(0) for part in one)
        else:
            given = inputs[0] if axis is None else inputs
            found = vmap(self.evaluate_one, in_dims=(0, 0, axis))(params, buffers, given)
        return found if head is None else (head(found[1], params), *found[1:])

    def gradient(
        self,
        params: Tensor,
        buffers: Tensor,
        inputs: Tensor,
        mask: Tensor,
        dropout_keys: Tensor,
        loss: Callable[[Outputs], Tensor],
        into: Tensor,
        keep: float = 0.0,
        features: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Derivative by the parameters, ``[copies, parameters]``, of a loss of the outputs in training mode.

        ``inputs`` and ``mask`` are ``[copies, samples, ...]``; ``loss`` sums over copies. Returns the gradient, which
        may lie in ``into``, and the buffers after the pass. Where the network `adds_gradients`, the ``keep``-th part of
        what lay in ``into`` is added to it. With ``features`` the loss gets those too (after `keep_features`).
        """
        self.compare_by_hand(inputs.shape[2:])
        if not self.module.training:  # asked of every step of every client
            self.module.train()
        if self.moving is None:
            rows = int(mask[0].sum())
            self.found_moving(find_moving(self, params[0], buffers[0], inputs[0, :rows], mask[0, :rows]))
        whole = mask.shape[1]
        if len(params) == 1 and params.device.type == "cpu" and not self.moving and not self.draws_at_random:
            # The padding comes last, and one copy needs none; two rows are left to networks that squeeze a single one.
            # Draws go by place in a tensor, whose rows may not be its first axis.
            rows = min(whole, max(int(mask.sum()), 2))
            inputs, mask = inputs[:, :rows], mask[:, :rows]
        missing = whole - mask.shape[1]
        if self.gradient_by_hand is not None and self.adds_gradients and not features:

            def loss_gradient(logits: Tensor) -> Tensor:
                with torch.enable_grad():
                    leaf = _with_rows(logits, missing).requires_grad_()
                    return torch.autograd.grad(loss(Outputs(leaf, None, None)), leaf)[0][:, : logits.shape[1]]

            views = self.params.views(params), self.params.views(into)
            self.gradient_by_hand(views[0], inputs, loss_gradient, views[1], keep)
            return into, buffers
        with torch.enable_grad():
            leaf = params.detach().requires_grad_()
            found, buffers = self.train(leaf, buffers, inputs, mask, dropout_keys)
            found = tuple(_with_rows(part, missing) for part in found)
            outputs = Outputs(found[0], found[1] if features else None, leaf if features else None)
            value = loss(outputs)
            if not value.requires_grad:
                raise FedGAError("nothing that is trained reaches the loss: let `moves` name parameters that do")
            return torch.autograd.grad(value, leaf)[0], buffers

    def train(self, params: Tensor, buffers: Tensor, inputs: Tensor, mask: Tensor, dropout_keys: Tensor) -> Passed:
        """Logits (and features) in training mode, and the buffers after it."""
        if self.moving:
            return self._train_one_by_one(params, buffers, inputs, mask, dropout_keys)
        if self._needs_context and len(params) == 1 and params.device.type == "cpu":
            return self._train_alone(params[0], buffers[0], inputs[0], mask[0], dropout_keys[0])
        if self._needs_context:
            named = self.params.views(params)
            found, moved = vmap(self.train_one)(named, self.buffers.views(buffers), inputs, mask, dropout_keys)
            self.context.forget()
            return found, self.buffers.join(moved).detach() if moved else buffers
        if len(params) == 1:
            only = self.params.views(params[0]) | self.buffers.views(buffers[0])
            return tuple(part.unsqueeze(0) for part in self._call(only, self._by_pixel(inputs[0]))), buffers
        named = self.params.views(params) | self.buffers.views(buffers)
        return vmap(self._call)(named, inputs), buffers

    def _train_alone(self, params: Tensor, buffers: Tensor, inputs: Tensor, mask: Tensor, key: Tensor) -> Passed:
        """One copy needs no mapping, and can be asked whether its batch has padding."""
        named, is_whole = self.params.views(params), len(mask) > 1 and bool(mask.all())
        found, moved = self.train_one(named, self.buffers.views(buffers), self._by_pixel(inputs), mask, key, is_whole)
        self.context.forget()
        after = self.buffers.join(moved).detach() if moved else buffers
        return tuple(part.unsqueeze(0) for part in found), after.unsqueeze(0)

    def _train_one_by_one(self, params: Tensor, buffers: Tensor, inputs: Tensor, mask: Tensor, keys: Tensor) -> Passed:
        """Each copy on the real rows of its batch: a layer that keeps values of its own must not see padding."""
        found: dict[int, tuple[Tensor, ...]] = {}
        moved = list(buffers)
        for row, real in enumerate(mask.sum(1).int().tolist()):
            if not real:  # nothing left to train on: this copy stands still
                continue
            own = {name: value.clone() for name, value in self.buffers.views(buffers[row]).items()}
            given = (self.params.views(params[row]), own, inputs[row, :real], mask[row, :real], keys[row])
            outputs, after = self.train_one(*given, is_whole=real > 1)
            found[row] = tuple(F.pad(part, (0, 0, 0, mask.shape[1] - real)) for part in outputs)
            moved[row] = self.buffers.join(after).detach().to(buffers.dtype)
        self.context.forget()
        if found:
            nothing = tuple(torch.zeros_like(part) for part in next(iter(found.values())))
        else:  # a step that none of these copies takes; what is given must depend on the parameters all the same
            own = {name: value.clone() for name, value in self.buffers.views(buffers[0]).items()}
            nothing = tuple(part * 0 for part in self._call(self.params.views(params[0]) | own, inputs[0]))
        rows = [found.get(row, nothing) for row in range(len(params))]
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True)), torch.stack(moved)

    def train_one(
        self,
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: Tensor,
        mask: Tensor,
        dropout_key: Tensor,
        is_whole: bool = False,
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        self.context.begin(mask, dropout_key, is_whole)
        state = params | buffers
        found = self._call(state, inputs)
        return found, {name: state[name] for name in buffers}  # functional_call writes reassigned buffers back


def _with_rows(part: Tensor, missing: int) -> Tensor:
    """``[1, rows, ...]`` with padding: the last row again, which no head or loss turns into NaN, as it might zeros."""
    return torch.cat([part, part[:, -1:].expand(-1, missing, -1)], 1) if missing else part
