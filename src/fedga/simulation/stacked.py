"""Many copies of one network as one tensor: parameters ``[copies, parameters]``, inputs ``[copies, samples, ...]``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedga.errors import FedGAError
from fedga.simulation.layers import depends_on_context, prepare_for_padding


class Layout:
    """Where each named tensor lies in one flat vector."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.total = sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        parts = [tensors[name].detach().reshape(-1) for name in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(0)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """``[..., total]`` as named tensors ``[..., *shape]`` that share its memory."""
        lead = flat.shape[:-1]
        parts = flat.split(self.sizes, dim=-1)
        return {name: part.view(*lead, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The reverse of `views`."""
        return torch.cat([tensors[name].flatten(-len(shape)) for name, shape in self.shapes.items()], dim=-1)


def float_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that training moves (running statistics); counters and index tables are constants to us."""
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


class StackedModel:
    """Runs a network for many parameter vectors at once. Holds no parameters itself."""

    def __init__(self, module: nn.Module) -> None:
        prepared, self._context = prepare_for_padding(module)
        self._module = prepared.requires_grad_(False)
        self._needs_context = depends_on_context(prepared)
        # A network may bring its own way of running many copies; see `fedga.models.mlp`.
        self._by_hand = getattr(prepared, "stacked", None)
        self._gradient_by_hand = getattr(prepared, "stacked_gradient", None)
        self.params = Layout(dict(prepared.named_parameters()))
        self.buffers = Layout(float_buffers(prepared))
        if any(not parameter.is_floating_point() for parameter in prepared.parameters()):
            raise FedGAError("the model has parameters that are not floating point: fedga trains float parameters only")

    def copy(self) -> StackedModel:
        """One of its own for another thread: a forward pass borrows the module for its parameters."""
        return copy.deepcopy(self)

    def to(self, device: torch.device) -> StackedModel:
        self._module.to(device)
        return self

    @cached_property
    def dtype(self) -> torch.dtype:
        return next(self._module.parameters()).dtype

    @cached_property
    def has_convolutions(self) -> bool:
        return any(isinstance(module, nn.modules.conv._ConvNd) for module in self._module.modules())

    def flatten(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Parameter and buffer vector of an ordinary module of the same kind."""
        return self.params.flatten(dict(module.named_parameters())), self.buffers.flatten(dict(module.named_buffers()))

    def unflatten(self, params: Tensor, buffers: Tensor, module: nn.Module) -> None:
        """Write one copy's vectors into an ordinary module."""
        state = self.params.views(params) | self.buffers.views(buffers)
        module.load_state_dict(module.state_dict() | state)

    def last_layer(self, num_classes: int) -> tuple[int, tuple[int, int]]:
        """Offset and shape of the output layer's weights in the parameter vector."""
        offset, found = 0, None
        for shape, size in zip(self.params.shapes.values(), self.params.sizes, strict=True):
            if len(shape) == 2 and shape[0] == num_classes:
                found = offset, (shape[0], shape[1])
            offset += size
        if found is None:
            raise FedGAError(
                f"the model has no output layer with weights [{num_classes}, features], which this algorithm looks at: "
                "end the model with torch.nn.Linear"
            )
        return found

    def forward_one(self, params: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Logits of one copy in evaluation mode, differentiable and vmappable: ``[parameters], [samples, ...]``."""
        self._module.eval()
        state = self.params.views(params) | self.buffers.views(buffers)
        return functional_call(self._module, state, (inputs,))

    def evaluate(self, params: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Logits ``[copies, samples, classes]`` in evaluation mode; ``inputs`` shared, ``[samples, ...]``."""
        if len(params) == 1:
            return self.forward_one(params[0], buffers[0], inputs).unsqueeze(0)
        if self._by_hand is not None:
            return self._by_hand(self.params.views(params), inputs.expand(len(params), *inputs.shape))
        return vmap(self.forward_one, in_dims=(0, 0, None))(params, buffers, inputs)

    def evaluate_each(self, params: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Like `evaluate` with inputs of its own for every copy, ``[copies, samples, ...]``."""
        if len(params) == 1:
            return self.forward_one(params[0], buffers[0], inputs[0]).unsqueeze(0)
        if self._by_hand is not None:
            return self._by_hand(self.params.views(params), inputs)
        return vmap(self.forward_one)(params, buffers, inputs)

    def gradient(
        self,
        params: Tensor,
        buffers: Tensor,
        inputs: Tensor,
        mask: Tensor,
        dropout_keys: Tensor,
        loss: Callable[[Tensor], Tensor],
        into: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Derivative by the parameters, ``[copies, parameters]``, of a loss of the logits in training mode.

        ``inputs`` and ``mask`` are ``[copies, samples, ...]``; ``loss`` sums over copies. Returns the gradient, which
        may lie in ``into``, and the buffers after the pass.
        """
        self._module.train()
        if self._gradient_by_hand is not None and not self._needs_context:

            def loss_gradient(logits: Tensor) -> Tensor:
                with torch.enable_grad():
                    leaf = logits.requires_grad_()
                    return torch.autograd.grad(loss(leaf), leaf)[0]

            self._gradient_by_hand(self.params.views(params), inputs, loss_gradient, self.params.views(into))
            return into, buffers
        with torch.enable_grad():
            leaf = params.detach().requires_grad_()
            logits, buffers = self._train(leaf, buffers, inputs, mask, dropout_keys)
            return torch.autograd.grad(loss(logits), leaf)[0], buffers

    def _train(
        self, params: Tensor, buffers: Tensor, inputs: Tensor, mask: Tensor, dropout_keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits in training mode, and the buffers after it."""
        if self._needs_context:
            named = self.params.views(params)
            logits, moved = vmap(self._train_one)(named, self.buffers.views(buffers), inputs, mask, dropout_keys)
            return logits, self.buffers.join(moved).detach() if moved else buffers
        if len(params) == 1:
            only = self.params.views(params[0])
            return functional_call(self._module, only, (inputs[0],)).unsqueeze(0), buffers
        named = self.params.views(params)
        return vmap(lambda state, x: functional_call(self._module, state, (x,)))(named, inputs), buffers

    def _train_one(
        self, params: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, mask: Tensor, dropout_key: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self._context.mask, self._context.dropout_key = mask, dropout_key
        state = params | buffers
        logits = functional_call(self._module, state, (inputs,))
        return logits, {name: state[name] for name in buffers}  # functional_call writes reassigned buffers back
