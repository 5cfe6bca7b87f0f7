"""The usual mistakes of an algorithm's hooks, found on a few made-up tensors, in milliseconds, each as one sentence.

`check_hooks` runs before an algorithm of the user's own trains. `fedga.testing.check_algorithm` runs it too, and then
trains with the algorithm in every way there is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, RoundResult, Server, Setup, Tensors, Trained, overrides
from fedga.algorithms.checking.declared import check_declarations
from fedga.algorithms.checking.hooks import Hooks, check_state, close, shown
from fedga.algorithms.checking.made_up import (
    ACTIVE,
    CLASSES,
    CLIENTS,
    NETWORK,
    OF_OTHERS,
    PARAMETERS,
    REAL,
    SAMPLES,
    SIZES,
    Round,
    bowl,
    client_of,
    server_of,
)
from fedga.errors import a_or_an

FEDAVG = Algorithm()
EXTREME = 200.0  # a logit whose softmax is 0 in float32


class _Checker:
    """One pass over the hooks of an algorithm, in the order of a round."""

    def __init__(self, algorithm: Algorithm, name: str) -> None:
        self.algorithm, self.made = algorithm, Round.make_up(algorithm)
        self.hooks = Hooks(algorithm, f"algorithm {name}", SIZES)
        self.require = self.hooks.require

    # --- the server before the round ---------------------------------------------------------------------------------

    def server(self) -> tuple[Tensors, Tensors]:
        """``server_state`` and ``broadcast``; returns the state, and what a client receives."""
        algorithm, params = self.algorithm, self.made.params[0]
        setup = Setup(params, CLIENTS, CLASSES, NETWORK)
        state = self.hooks.call("server_state", lambda: algorithm.server_state(setup))
        self.hooks.tensors("server_state", state)
        given = (params, state, self.made.auxiliary) if algorithm.auxiliary_samples else (params, state)
        received = self.hooks.mapped("broadcast", lambda *given: algorithm.broadcast(server_of(*given)), *given)
        self.hooks.as_declared("broadcast", "downloads", received)
        return state, received

    # --- the client --------------------------------------------------------------------------------------------------

    def loss(self, received: Tensors) -> None:
        batch = self.made.batch(0, received, self.algorithm)
        losses = self._per_sample("local_loss", self.algorithm.local_loss, batch)
        logits = torch.where(batch.mask[:, None] > 0, batch.logits, -9 * batch.logits)  # losses above all others
        targets = torch.where(batch.mask > 0, batch.targets, CLASSES - batch.targets)
        padded = replace(batch, logits=logits, targets=targets)
        rows = ("logits", "targets", "mask", "features", *OF_OTHERS)
        values = {name: getattr(batch, name) for name in rows}
        cut = replace(batch, **{name: value[:REAL] for name, value in values.items() if value is not None})
        for other in (padded, cut):
            again = self.hooks.call("local_loss", partial(self.algorithm.local_loss, other))
            self.require(
                close(again[:REAL], losses[:REAL]),
                "local_loss reads padding: the loss of a sample changes with rows whose batch.mask is 0; multiply by "
                "batch.mask before you add over the batch, and divide by batch.mask.sum().clamp(min=1), not its length",
            )
        self._check_finite(batch)
        self._stacked(received)

    def _per_sample(self, hook: str, function: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """The values of a hook that gives one number per sample, alone and mapped over clients."""
        given = {name: value for name, value in vars(batch).items() if value is not None}

        def one(given: Mapping[str, Any]) -> Any:
            return self._shaped_per_sample(hook, function(Batch(**given)))

        return self.hooks.mapped(hook, one, given)

    def _shaped_per_sample(self, hook: str, values: Any) -> Tensor:
        is_tensor = isinstance(values, Tensor)
        self.require(is_tensor, f"{hook} gave {a_or_an(values)}: return a tensor with one number per sample")
        shape = tuple(values.shape)
        wrong = {
            (): 'gave one number for the whole batch: return one per sample (reduction="none")',
            (SAMPLES, CLASSES): "gave a number per sample and class: add up over the classes with .sum(-1)",
        }.get(shape, f"gave shape {list(shape)} for {SAMPLES} samples: return one number per sample")
        self.require(shape == (SAMPLES,), f"{hook} {wrong}")
        return values

    def _check_finite(self, batch: Batch) -> None:
        """On batches that are ever harder, each with what makes a loss fail there and not before."""
        every_class = replace(batch, class_counts=batch.class_counts.clamp(min=1))
        padding = replace(batch, mask=torch.zeros_like(batch.mask))
        extreme = replace(batch, logits=batch.logits.sign() * EXTREME)
        cases = (
            (every_class, "for any client: avoid 0/0, log(0) and nan"),
            (batch, "for a client that lacks a class: do not divide by, or take the log of, batch.class_counts of 0"),
            (padding, "for a batch of padding alone, as small clients get: divide by batch.mask.sum().clamp(min=1)"),
            (extreme, f"with logits of ±{EXTREME:g}: use F.log_softmax or F.cross_entropy, not the log of a softmax"),
        )
        for case, where in cases:
            self.require(self._is_finite(case), f"local_loss gives no finite numbers {where}")

    def _is_finite(self, batch: Batch) -> bool:
        """Of the real samples, loss and gradient, in float32 as in training."""
        logits = batch.logits.float().requires_grad_()
        floats: dict[str, Any] = {
            name: value.float() for name, value in vars(batch).items() if isinstance(value, Tensor)
        }
        received = {name: value.float() for name, value in batch.received.items()}
        inputs = replace(batch, **floats | {"logits": logits, "targets": batch.targets, "received": received})
        leaves = [logits] + ([inputs.features.requires_grad_()] if inputs.features is not None else [])
        losses = self.hooks.call("local_loss", lambda: self.algorithm.local_loss(inputs))[:REAL]
        found: Any = [None]
        if losses.requires_grad:
            found = torch.autograd.grad(losses.mean(), leaves, allow_unused=True)
        if found[0] is None:
            raise self.hooks.wrong("local_loss does not depend on batch.logits: leave out detach, argmax and no_grad")
        return all(bool(each.isfinite().all()) for each in (losses, *found) if each is not None)

    def _stacked(self, received: Tensors) -> None:
        """A class that says so takes the batches of many clients at once."""
        if not vars(type(self.algorithm)).get("stacks", False):
            return
        made, remedy = self.made, "leave `stacks` out, and it is mapped over the clients instead"
        many = {name: value.expand(ACTIVE, *value.shape) for name, value in received.items()}
        batch = made.batch(slice(0, ACTIVE), many, self.algorithm)
        try:
            stacked = self.algorithm.local_loss(batch)
        except Exception as error:
            raise self.hooks.wrong(
                f"says stacks = True, and local_loss fails{self.hooks.place(error)}: {remedy}"
            ) from error
        for client in range(ACTIVE):
            alone = self.algorithm.local_loss(made.batch(client, received, self.algorithm))
            if stacked.shape != made.targets.shape or not close(stacked[client], alone):
                raise self.hooks.wrong(f"says stacks = True, and local_loss gives other values for a stack: {remedy}")

    def client(self, received: Tensors) -> tuple[Tensors, Tensors]:
        """The other hooks of a client; returns a client's report, and its report after the last round."""
        algorithm, params, start = self.algorithm, self.made.params[0], self.made.params[1]
        if algorithm.evaluates_all_clients:
            batch = replace(self.made.batch(0, {}, FEDAVG), class_counts=torch.full((CLASSES,), torch.nan).double())
            values = self._per_sample("survey", algorithm.survey, batch)
            wrong = "survey gives no finite numbers: its batch.class_counts are not known (nan), and its mask may be 0"
            self.require(values[:REAL].isfinite().all(), wrong)
        self._sampling()
        self._names()
        if overrides(algorithm, "head"):
            self._head(params, received)
        state = self._client_state(params, start)
        if overrides(algorithm, "penalty"):
            self._penalty(params, start)
        client = (start, state, received, self.made.class_counts[0])
        self._vector("start", lambda *given: algorithm.start(client_of(*given)), *client)
        self._vector("earlier", lambda *given: algorithm.earlier(client_of(*given)), *client)
        self._vector("correct", lambda g, *given: algorithm.correct(g, client_of(*given)), params, *client)
        self._vector("gradient", lambda p, *given: algorithm.gradient(bowl, p, client_of(*given)), params, *client)
        return self._reports(params, client)

    def _client_state(self, params: Tensor, start: Tensor) -> Tensors:
        algorithm = self.algorithm
        state = self.hooks.call("client_state", lambda: algorithm.client_state(params))
        self.hooks.as_declared("client_state", "client_state_spec", state)
        other = self.hooks.call("client_state", lambda: algorithm.client_state(start))
        self.require(
            all(torch.equal(value, other[name]) for name, value in state.items()),
            "client_state depends on the values of params, which are the first model that a client happens to get: "
            "take only shape and device from them, as with torch.zeros_like(params)",
        )
        return state

    def _vector(self, hook: str, function: Callable[..., Any], *given: Any) -> None:
        """A hook that returns a vector of all parameters."""
        found = self.hooks.mapped(hook, function, *given)
        wrong = f"{hook} gave shape {list(found.shape)}: return a vector as long as the one it is given"
        self.require(found.shape == (PARAMETERS,), wrong)

    def _sampling(self) -> None:
        counts = self.made.class_counts[0]
        rates = self.hooks.mapped("class_rates", self.algorithm.class_rates, counts)
        self.require(
            rates.shape == (CLASSES,) and rates.isfinite().all() and (rates >= 0).all() and (rates[1:] > 0).any(),
            "class_rates must return one finite number from 0 on per class, and some above 0: mind counts of 0",
        )
        length = self.hooks.mapped("epoch_length", self.algorithm.epoch_length, counts)
        wrong = f"epoch_length gave {shown(length)}: return one finite number of at least 1"
        self.require(length.shape == () and length.isfinite() and length >= 1, wrong)

    def _names(self) -> None:
        for hook in ("moves", "travels"):
            names = self.hooks.call(hook, partial(getattr(self.algorithm, hook), NETWORK))
            for name in names:
                self.require(name in NETWORK.shapes, f"{hook} names {name!r}: choose from parameters.shapes")

    def _head(self, params: Tensor, received: Tensors) -> None:
        named = NETWORK.views(params)
        logits = self.hooks.mapped("head", self.algorithm.head, self.made.features[0], named, dict(received))
        wrong = f"head gave shape {list(logits.shape)}: return [samples, classes]"
        self.require(logits.shape == (SAMPLES, CLASSES), wrong)

    def _reports(self, params: Tensor, client: tuple[Any, ...]) -> tuple[Tensors, Tensors]:
        algorithm, made = self.algorithm, self.made
        sums: dict[str, Tensor] = {}
        if algorithm.needs_class_features:
            labels = torch.nn.functional.one_hot(made.targets[0], CLASSES).double()
            embedded = self.hooks.mapped("embed", algorithm.embed, made.features[0])
            sums = {"class_features": labels.T @ embedded}
            if algorithm.needs_second_moment:
                sums["second_moment"] = embedded.T @ embedded
            if algorithm.needs_class_moments:
                sums["class_moments"] = torch.einsum("nc,nd,ne->cde", labels, embedded, embedded)

        def trained(params: Tensor, *rest: Any) -> Trained:
            steps, given = torch.tensor(3.0, dtype=torch.float64), vars(client_of(*rest[:4]))
            return Trained(**given, params=params, steps=steps, **rest[4])

        answer = self.hooks.mapped("report", lambda *given: algorithm.report(trained(*given)), params, *client, sums)
        is_pair = isinstance(answer, tuple) and len(answer) == 2
        self.require(is_pair, "report must return two dictionaries: what is sent, and what the client keeps")
        reported, kept = answer
        self.hooks.as_declared("report", "uploads", reported)
        self.hooks.as_declared("report", "client_state_spec", kept, does="keep")
        final: Tensors = {}
        if algorithm.finishes:
            given = (params, *client, sums)
            final = self.hooks.mapped("final_report", lambda *given: algorithm.final_report(trained(*given)), *given)
            self.hooks.as_declared("final_report", "final_uploads", final)
        return reported, final

    def _penalty(self, params: Tensor, start: Tensor) -> None:
        penalty = self.hooks.mapped("penalty", self.algorithm.penalty, params, start)
        wrong = f"penalty gave shape {list(penalty.shape)}: return one number, as with .sum()"
        self.require(penalty.shape == (), wrong)
        at_the_start = start.clone().requires_grad_()
        value = self.hooks.call("penalty", lambda: self.algorithm.penalty(at_the_start, start))
        if value.requires_grad and not torch.autograd.grad(value, at_the_start)[0].isfinite().all():
            raise self.hooks.wrong(
                "penalty has no finite gradient where params equal global_params, as they do at first: a root of 0 has "
                "none, so square it, or add a little below the root"
            )

    # --- the server after the round ----------------------------------------------------------------------------------

    def aggregation(self, state: Tensors, reported: Tensors, final: Tensors) -> None:
        algorithm, params, clients = self.algorithm, self.made.params[0], torch.tensor([4, 0, 2])
        shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        weights = self.hooks.mapped("weights", algorithm.weights, state, clients, shares)
        wrong = f"weights gave {shown(weights)}: return one finite number per active client, {ACTIVE} here"
        self.require(weights.shape == (ACTIVE,) and weights.isfinite().all(), wrong)
        reports = {name: torch.stack([value] * ACTIVE) for name, value in reported.items()}
        models = params + torch.arange(1.0, ACTIVE + 1, dtype=torch.float64)[:, None] * self.made.params[1]
        inspected = self.hooks.mapped(
            "inspect", lambda *given: algorithm.inspect(self._server(*given[:2]), given[2]), params, state, models
        )
        reports |= self.hooks.tensors("inspect", inspected)
        self._groups(params, state, clients)
        given: tuple[Any, ...] = (state, clients, shares, self.made.params[1], reports)
        if algorithm.evaluates_all_clients:
            given = (*given, torch.linspace(0.5, 1.5, CLIENTS, dtype=torch.float64))

        def update(state: Tensors, *given: Any) -> Any:
            return algorithm.update_server(state, RoundResult(1, *given))

        after = self.hooks.tensors("update_server", self.hooks.mapped("update_server", update, *given))
        if wrong := check_state(state, after, "update_server", "server_state"):
            raise self.hooks.wrong(wrong)

        def aggregate(params: Tensor, state: Tensors, *given: Any) -> Any:
            return algorithm.aggregate(self._server(params, state), RoundResult(1, *given), lambda step: params + step)

        self._vector("aggregate", aggregate, params, after, *given[1:])
        if algorithm.finishes:
            every = {name: torch.stack([value] * CLIENTS) for name, value in final.items()}
            self._vector("finish", lambda p, s, r: algorithm.finish(self._server(p, s), r), params, after, every)

    def _server(self, params: Tensor, state: Tensors) -> Server:
        return server_of(params, state, self.made.auxiliary if self.algorithm.auxiliary_samples else None)

    def _groups(self, params: Tensor, state: Tensors, clients: Tensor) -> None:
        def groups(params: Tensor, state: Tensors, *given: Tensor) -> Tensor:
            return self.algorithm.groups(self._server(params, state), *given)

        found = self.hooks.mapped("groups", groups, params, state, clients, self.made.class_counts)
        wrong = f"groups gave {shown(found)}: return a whole number per active client"
        self.require(found.shape == (ACTIVE,) and not found.is_floating_point(), wrong)


def gradient_passes(algorithm: Algorithm) -> int:
    """How many gradients a local step takes: the calls of ``at`` in its `gradient`.

    >>> from fedga.algorithms import make_algorithm
    >>> gradient_passes(make_algorithm("fedsam")), gradient_passes(make_algorithm("fedlesam"))
    (2, 1)
    """
    checker, calls = _Checker(algorithm, type(algorithm).__name__), 0
    _, received = checker.server()
    params, start = checker.made.params

    def at(params: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return bowl(params)

    client = client_of(start, algorithm.client_state(start), received, checker.made.class_counts[0])
    algorithm.gradient(at, params, client)
    return calls


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
    checker.aggregation(state, *checker.client(received))
