"""The clients' optimisers on stacked parameter vectors ``[copies, parameters]``."""

from math import cos, pi

import torch
from torch import Tensor

from fedga.engine.gpu.layers import runs_kernels

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
EXPONENTIAL_END = 0.01  # the exponential schedule falls to this share of the rate


def scheduled_rate(lr: float, schedule: str, round_number: int, rounds: int) -> float:
    """The local learning rate of round ``round_number`` (from 1)."""
    done = (round_number - 1) / rounds
    return lr * {"constant": 1.0, "cosine": (1 + cos(pi * done)) / 2, "exponential": EXPONENTIAL_END**done}[schedule]


class LocalOptimizer:
    """SGD or Adam, fresh every round, equal to ``torch.optim`` on every row; a copy whose rate is 0 stands still."""

    def __init__(self, kind: str, momentum: float, weight_decay: Tensor | None, clip: Tensor | None) -> None:
        """Weight decay and largest norm of every copy, ``[copies]``; None where no copy has any: a pass is saved."""
        self.kind, self.momentum = kind, momentum
        self.weight_decay, self.clip = (None if each is None else each[:, None] for each in (weight_decay, clip))
        self.first: Tensor | None = None
        self.second: Tensor | None = None
        self.taken = 0

    def accumulator(self, params: Tensor) -> tuple[Tensor, float] | None:
        """Where a gradient may be added to straight away, and which part of what lies there is to be kept.

        That is the momentum of SGD without clipping, on a CPU; None for all else. `step` takes it as its gradient.
        """
        if self.kind != "sgd" or not self.momentum or self.clip is not None or runs_kernels(params):
            return None
        first = self.first is None
        if self.first is None:
            self.first = torch.zeros_like(params)
        return self.first, 0.0 if first else self.momentum

    def step(self, params: Tensor, gradient: Tensor, lr: Tensor) -> None:
        """Move ``params`` in place; ``gradient`` may be overwritten. Clipping goes into the factors: no extra pass."""
        if self.kind == "sgd" and runs_kernels(params):
            self._step_in_one_pass(params, gradient, lr)
            return
        rate, keep = lr[:, None], self._clipping(gradient)
        if self.kind == "sgd" and self.momentum == 0:
            if self.weight_decay is not None:
                params.mul_(1 - rate * self.weight_decay)
            params.addcmul_(gradient, (rate * keep).expand_as(gradient), value=-1)
            return
        follow = self._momentum if self.kind == "sgd" else self._adam
        params.addcmul_(follow(params, gradient, keep), rate.expand_as(params), value=-1)

    def _step_in_one_pass(self, params: Tensor, gradient: Tensor, lr: Tensor) -> None:
        from fedga.engine.gpu.kernels.step import sgd_step

        first = self.first is None
        if first and self.momentum:
            self.first = torch.empty_like(params)
        sgd_step(params, gradient, self.first, lr, self.clip, self.weight_decay, self.momentum, first)

    def _clipping(self, gradient: Tensor) -> Tensor:
        """The factor that brings a gradient to the largest norm allowed, as ``torch.nn.utils.clip_grad_norm_``."""
        if self.clip is None:
            return gradient.new_ones(len(gradient), 1)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return (self.clip / (norm + 1e-6)).clamp(max=1)

    def _momentum(self, params: Tensor, gradient: Tensor, keep: Tensor) -> Tensor:
        if self.first is None:
            self.first = gradient * keep
        elif gradient is not self.first:  # else it was added by whoever asked for the `accumulator`
            self.first.mul_(self.momentum).addcmul_(gradient, keep.expand_as(gradient))
        if self.weight_decay is not None:
            self.first.addcmul_(params, self.weight_decay.expand_as(params))
        return self.first

    def _adam(self, params: Tensor, gradient: Tensor, keep: Tensor) -> Tensor:
        beta1, beta2 = ADAM_BETAS
        self.taken += 1
        gradient = gradient.mul_(keep)
        if self.weight_decay is not None:
            gradient.addcmul_(params, self.weight_decay.expand_as(params))
        if self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self.second.sqrt() / (1 - beta2**self.taken) ** 0.5).add_(ADAM_EPS)
        return self.first / (1 - beta1**self.taken) / root


def averaging_weight(weight: Tensor, round_number: int) -> Tensor:
    """How far the averaged model moves towards the last one in this round.

    An exponential mean with its start corrected (as Adam's): after round 1 it *is* the last model, so that the random
    initial weights never enter it.
    """
    return weight / (1 - (1 - weight) ** round_number).clamp(min=1e-12)
