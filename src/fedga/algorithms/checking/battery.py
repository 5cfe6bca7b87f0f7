"""The usual mistakes of an algorithm's hooks, found on a few made-up tensors, in milliseconds, each as one sentence.

`check_hooks` runs before an algorithm of the user's own trains. `fedga.testing.check_algorithm` runs it too, and then
trains with the algorithm in every way there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Server, Tensors, Trained
from fedga.algorithms.checking.declared import check_declarations
from fedga.algorithms.checking.hooks import Hooks, close, shown
from fedga.errors import a_or_an

# All different, so that no wrong shape looks like a right one.
SAMPLES, REAL, CLASSES, FEATURES, CLIENTS, ACTIVE, LANES = 8, 6, 4, 6, 5, 3, 2
PARAMETERS = CLASSES * FEATURES + CLASSES
SIZES = {"1": (), "classes": (CLASSES,), "parameters": (PARAMETERS,)}
EXTREME = 200.0  # a logit whose softmax is 0 in float32


@dataclass(frozen=True)
class _Round:
    """What the hooks of a round are given: made up, and the same every time."""

    params: Tensor  # [LANES, PARAMETERS]: as one server has it
    logits: Tensor  # [ACTIVE, SAMPLES, CLASSES]
    global_logits: Tensor
    targets: Tensor  # [ACTIVE, SAMPLES]: none of the first class, which the clients lack
    mask: Tensor  # the last samples are padding
    class_counts: Tensor  # [ACTIVE, CLASSES]
    auxiliary: Tensor  # [CLASSES, samples, FEATURES]

    @classmethod
    def make_up(cls, algorithm: Algorithm) -> _Round:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        targets = torch.arange(ACTIVE * SAMPLES).reshape(ACTIVE, SAMPLES) % (CLASSES - 1) + 1
        mask = (torch.arange(SAMPLES) < REAL).double().expand(ACTIVE, SAMPLES)
        counts = torch.tensor([[0.0, 9.0, 4.0, 1.0], [0.0, 2.0, 8.0, 5.0], [0.0, 1.0, 3.0, 7.0]], dtype=torch.float64)
        logits, teacher = normal(2, ACTIVE, SAMPLES, CLASSES)
        held = normal(CLASSES, max(1, algorithm.auxiliary_samples), FEATURES)
        return cls(normal(LANES, PARAMETERS), logits, teacher, targets, mask, counts, held)

    def batch(self, client: int, received: Tensors, needs_teacher: bool) -> Batch:
        teacher = self.global_logits[client] if needs_teacher else None
        counts = self.class_counts[client]
        return Batch(self.logits[client], self.targets[client], self.mask[client], counts, teacher, received)


class _Checker:
    """One pass over the hooks of an algorithm, in the order of a round."""

    def __init__(self, algorithm: Algorithm, name: str) -> None:
        self.algorithm, self.made = algorithm, _Round.make_up(algorithm)
        self.hooks, self.teaches = Hooks(algorithm, f"algorithm {name}", SIZES), algorithm.needs_global_logits

    # --- the server before the round ---------------------------------------------------------------------------------

    def server(self) -> tuple[Tensors, Tensors]:
        """``server_state``, ``select`` and ``broadcast``; returns the state, and what a client receives."""
        algorithm, params = self.algorithm, self.made.params[0]
        state = self.hooks.tensors(
            "server_state", self.hooks.call("server_state", lambda: algorithm.server_state(params, CLIENTS, CLASSES))
        )
        draws = torch.linspace(0.9, 0.1, CLIENTS, dtype=torch.float64)
        chosen = self.hooks.mapped("select", lambda state, draws: algorithm.select(state, draws, ACTIVE), state, draws)
        if chosen.shape != (ACTIVE,) or chosen.is_floating_point() or len(set(chosen.tolist())) < ACTIVE:
            raise self.hooks.wrong(f"select gave {chosen.tolist()}: return the numbers of `active` different clients")
        if not all(0 <= client < CLIENTS for client in chosen.tolist()):
            raise self.hooks.wrong(f"select gave {chosen.tolist()} of {CLIENTS} clients: return places in `draws`")
        held = self.made.auxiliary if algorithm.auxiliary_samples else None
        given = (params, state) if held is None else (params, state, held)
        received = self.hooks.mapped("broadcast", lambda *given: algorithm.broadcast(_server(*given)), *given)
        self.hooks.as_declared("broadcast", "downloads", algorithm.downloads, received)
        return state, received

    # --- the client --------------------------------------------------------------------------------------------------

    def loss(self, received: Tensors) -> None:
        made, batch = self.made, self.made.batch(0, received, self.teaches)
        losses = self._per_sample("local_loss", self.algorithm.local_loss, batch)
        padded = replace(
            batch,
            logits=torch.where(batch.mask[:, None] > 0, batch.logits, -batch.logits),
            targets=torch.where(batch.mask > 0, batch.targets, CLASSES - batch.targets),
        )
        cut = replace(batch, logits=batch.logits[:REAL], targets=batch.targets[:REAL], mask=batch.mask[:REAL])
        cut = replace(cut, global_logits=made.global_logits[0, :REAL]) if self.teaches else cut
        for other in (padded, cut):
            again = self.hooks.call("local_loss", partial(self.algorithm.local_loss, other))
            if not close(again[:REAL], losses[:REAL]):
                raise self.hooks.wrong(
                    "local_loss reads padding: the loss of a sample changes with rows whose batch.mask is 0; multiply "
                    "by batch.mask before you add over the batch, and divide by batch.mask.sum().clamp(min=1), not by "
                    "its length"
                )
        self._check_finite(batch)
        self._stacked(received)

    def _per_sample(self, hook: str, function: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """The values of a hook that gives one number per sample, alone and mapped over clients."""
        given = [batch.logits, batch.targets, batch.mask, batch.class_counts, dict(batch.received)]
        if batch.global_logits is not None:
            given.append(batch.global_logits)

        def one(
            logits: Tensor, targets: Tensor, mask: Tensor, counts: Tensor, received: Tensors, *teacher: Tensor
        ) -> Any:
            values = function(Batch(logits, targets, mask, counts, teacher[0] if teacher else None, received))
            return self._shaped_per_sample(hook, values)

        return self.hooks.mapped(hook, one, *given)

    def _shaped_per_sample(self, hook: str, values: Any) -> Tensor:
        shape = tuple(values.shape) if isinstance(values, Tensor) else None
        if shape is None:
            raise self.hooks.wrong(f"{hook} gave {a_or_an(values)}: return a tensor with one number per sample")
        if shape == ():
            raise self.hooks.wrong(
                f'{hook} gave one number for the whole batch: return one per sample (reduction="none")'
            )
        if shape == (SAMPLES, CLASSES):
            raise self.hooks.wrong(f"{hook} gave a number per sample and class: add up over the classes with .sum(-1)")
        if shape != (SAMPLES,):
            raise self.hooks.wrong(
                f"{hook} gave shape {list(shape)} for {SAMPLES} samples: return one number per sample"
            )
        return values

    def _check_finite(self, batch: Batch) -> None:
        if not self._is_finite(batch):
            if not self._is_finite(replace(batch, class_counts=batch.class_counts.clamp(min=1))):
                raise self.hooks.wrong("local_loss gives no finite numbers for any client: avoid 0/0, log(0) and nan")
            raise self.hooks.wrong(
                "local_loss gives no finite numbers for a client that lacks a class: avoid dividing by, or taking the "
                "log of, batch.class_counts where they are 0"
            )
        if not self._is_finite(replace(batch, mask=torch.zeros_like(batch.mask))):
            raise self.hooks.wrong(
                "local_loss gives no finite numbers for a batch of padding alone, which a client gets that has no more "
                "samples: divide by batch.mask.sum().clamp(min=1)"
            )
        if not self._is_finite(replace(batch, logits=batch.logits.sign() * EXTREME)):
            raise self.hooks.wrong(
                f"local_loss gives no finite numbers with logits of ±{EXTREME:g}: use F.log_softmax or F.cross_entropy "
                "instead of the log of a softmax"
            )

    def _is_finite(self, batch: Batch) -> bool:
        """Of the real samples, loss and gradient, in float32 as in training."""
        logits = batch.logits.float().requires_grad_()
        teacher = None if batch.global_logits is None else batch.global_logits.float()
        received = {name: value.float() for name, value in batch.received.items()}
        inputs = Batch(logits, batch.targets, batch.mask.float(), batch.class_counts.float(), teacher, received)
        losses = self.hooks.call("local_loss", lambda: self.algorithm.local_loss(inputs))[:REAL]
        if not losses.requires_grad:
            raise self.hooks.wrong("local_loss does not depend on batch.logits: leave out detach, argmax and no_grad")
        (gradient,) = torch.autograd.grad(losses.mean(), logits)
        return bool(losses.isfinite().all() and gradient.isfinite().all())

    def _stacked(self, received: Tensors) -> None:
        """A class that says so takes the batches of many clients at once."""
        if not vars(type(self.algorithm)).get("stacks", False):
            return
        made, remedy = self.made, "leave `stacks` out, and it is mapped over the clients instead"
        teacher = made.global_logits if self.teaches else None
        many = {name: value.expand(ACTIVE, *value.shape) for name, value in received.items()}
        batch = Batch(made.logits, made.targets, made.mask, made.class_counts.unsqueeze(1), teacher, many)
        try:
            stacked = self.algorithm.local_loss(batch)
        except Exception as error:
            raise self.hooks.wrong(
                f"says stacks = True, and local_loss fails on a stack{self.hooks.place(error)}: {remedy}"
            ) from error
        for client in range(ACTIVE):
            alone = self.algorithm.local_loss(made.batch(client, received, self.teaches))
            if stacked.shape != made.targets.shape or not close(stacked[client], alone):
                raise self.hooks.wrong(f"says stacks = True, and local_loss gives other values for a stack: {remedy}")

    def client(self, received: Tensors) -> Tensors:
        """``survey``, ``client_state``, ``penalty``, ``correct`` and ``report``; returns a client's report."""
        algorithm, params, start = self.algorithm, self.made.params[0], self.made.params[1]
        if algorithm.surveys:
            no_counts = replace(self.made.batch(0, {}, False), class_counts=torch.zeros(CLASSES, dtype=torch.float64))
            self._per_sample("survey", algorithm.survey, no_counts)
        state = self.hooks.tensors(
            "client_state", self.hooks.call("client_state", lambda: algorithm.client_state(params))
        )
        self.hooks.as_declared("client_state", "keeps", algorithm.keeps, state)
        other = self.hooks.call("client_state", lambda: algorithm.client_state(start))
        if not all(torch.equal(value, other[name]) for name, value in state.items()):
            raise self.hooks.wrong(
                "client_state depends on the values of params, which are the first model that a client happens to get: "
                "take only shape and device from them, as with torch.zeros_like(params)"
            )
        if type(algorithm).penalty is not Algorithm.penalty:
            self._penalty(params, start)
        gradient = self.hooks.mapped("correct", algorithm.correct, params, state, received)
        if gradient.shape != (PARAMETERS,):
            raise self.hooks.wrong(
                f"correct gave shape {list(gradient.shape)}: return a gradient as long as the one it is given"
            )
        steps, lr = torch.tensor(3.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
        given = (params, start, state, received, steps, lr, self.made.class_counts[0])
        answer = self.hooks.mapped("report", lambda *given: algorithm.report(Trained(*given)), *given)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self.hooks.wrong("report must return two dictionaries: what is sent, and what the client keeps")
        reported, kept = answer
        self.hooks.as_declared("report", "uploads", tuple(s for s in algorithm.uploads if s.name != "survey"), reported)
        self.hooks.as_declared("report", "keeps", algorithm.keeps, kept, does="keep")
        return reported

    def _penalty(self, params: Tensor, start: Tensor) -> None:
        penalty = self.hooks.mapped("penalty", self.algorithm.penalty, params, start)
        if penalty.shape != ():
            raise self.hooks.wrong(f"penalty gave shape {list(penalty.shape)}: return one number, as with .sum()")
        at_the_start = start.clone().requires_grad_()
        value = self.hooks.call("penalty", lambda: self.algorithm.penalty(at_the_start, start))
        if value.requires_grad and not torch.autograd.grad(value, at_the_start)[0].isfinite().all():
            raise self.hooks.wrong(
                "penalty has no finite gradient where params equal global_params, as they do at first: a root of 0 has "
                "none, so square it, or add a little below the root"
            )

    # --- the server after the round ----------------------------------------------------------------------------------

    def aggregation(self, state: Tensors, reported: Tensors) -> None:
        algorithm, clients = self.algorithm, torch.tensor([4, 0, 2])
        shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        weights = self.hooks.mapped("weights", algorithm.weights, state, clients, shares)
        if weights.shape != (ACTIVE,) or not weights.isfinite().all():
            raise self.hooks.wrong(
                f"weights gave {shown(weights)}: return one finite number per active client, {ACTIVE} here"
            )
        reports = {name: torch.stack([value] * ACTIVE) for name, value in reported.items()}
        given: tuple[Any, ...] = (state, clients, reports)
        if algorithm.surveys:
            given = (*given, torch.linspace(0.5, 1.5, CLIENTS, dtype=torch.float64))

        def update(state: Tensors, clients: Tensor, reports: Tensors, survey: Tensor | None = None) -> Any:
            return algorithm.update_server(state, clients, reports, survey)

        after = self.hooks.tensors("update_server", self.hooks.mapped("update_server", update, *given))
        for key in {**state, **after}:
            if key not in after or key not in state:
                verb = "drops" if key not in after else "adds"
                raise self.hooks.wrong(
                    f"update_server {verb} {key!r}: return all that server_state has, and nothing else"
                )
            if after[key].shape != state[key].shape:
                raise self.hooks.wrong(
                    f"update_server makes {key!r} of shape {list(after[key].shape)} where server_state has "
                    f"{list(state[key].shape)}: keep the shape"
                )


def check_hooks(algorithm: Algorithm, name: str = "") -> None:
    """Refuse, in one sentence that says what to do, an algorithm whose hooks would fail or be wrong in a run.

    >>> from fedga.algorithms import make_algorithm
    >>> check_hooks(make_algorithm("fedga"))
    """
    name = name or type(algorithm).__name__
    check_declarations(type(algorithm), f"algorithm {name}")
    checker = _Checker(algorithm, name)
    state, received = checker.server()
    checker.loss(received)
    reported = checker.client(received)
    checker.aggregation(state, reported)


def _server(params: Tensor, state: Tensors, auxiliary: Tensor | None = None) -> Server:
    """A server whose model is one linear layer."""

    def forward(params: Tensor, inputs: Tensor) -> Tensor:
        weights, bias = params[: CLASSES * FEATURES].view(CLASSES, FEATURES), params[CLASSES * FEATURES :]
        return inputs.flatten(1) @ weights.T + bias

    return Server(params, state, CLASSES, forward, lambda classes: (0, (classes, FEATURES)), auxiliary)
