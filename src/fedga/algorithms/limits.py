"""What an algorithm asks for beyond FedAvg, from what it declares: whether it fits where not everything is allowed."""

from typing import Any

from fedga.algorithms.base import Algorithm, overrides
from fedga.algorithms.checking.battery import gradient_passes

_SINGLE = {"inspect": "single updates", "weights": "a weight for each client", "groups": "who trains after whom"}


def sends_extra(algorithm: Algorithm) -> bool:
    """Whether anything but the model travels; a survey asks every client, and takes the model to all of them."""
    sent = (*algorithm.uploads, *algorithm.downloads, *algorithm.final_uploads)
    return bool(sent) or algorithm.evaluates_all_clients


def more_than_sums(part: Any) -> list[str]:
    """What the server needs of single clients, in words, for an algorithm or a rule of selection.

    Nothing where sums over clients suffice: it can then run under secure aggregation, in which the server sees no more.
    The weight of a client by its number of samples is one that the client itself can apply before the sum.

    >>> from fedga.algorithms.climb import CLIMB
    >>> from fedga.algorithms.scaffold import SCAFFOLD
    >>> more_than_sums(SCAFFOLD()), more_than_sums(CLIMB())
    ([], ['a weight for each client', 'survey'])
    """
    if not isinstance(part, Algorithm):  # a rule of selection: whatever it needs, it needs of each client
        needs = [name for name in dir(part) if name.startswith("needs_") and getattr(part, name)]
        single = [name.removeprefix("needs_").replace("_", " ") for name in needs]
        return single + [_SINGLE["inspect"]] * overrides(part, "inspect")
    single = [words for hook, words in _SINGLE.items() if overrides(part, hook)]
    single += [one.name.replace("_", " ") for one in (*part.uploads, *part.final_uploads) if not one.summed]
    if part.evaluates_all_clients and "survey" not in single:  # `RoundResult.survey` is of every client, by its number
        single.append("survey")
    return single


def extra_passes(algorithm: Algorithm) -> list[str]:
    """Forward passes beside those of FedAvg, in words."""
    teachers = algorithm.needs_global_logits + overrides(algorithm, "earlier")
    passes = [f"{teachers} per local step"] if teachers else []
    passes += _of_gradient(algorithm)
    passes += ["1 over a client's data at its end"] if algorithm.needs_class_features else []
    passes += ["1 over all data of every client"] if algorithm.evaluates_all_clients else []
    return passes + (["over the server's samples"] if algorithm.auxiliary_samples else [])


def _of_gradient(algorithm: Algorithm) -> list[str]:
    """What a step's own `gradient` costs beside the one that every algorithm takes."""
    if not overrides(algorithm, "gradient"):
        return []
    try:
        extra = gradient_passes(algorithm) - 1
    except Exception:  # the user's own, which no run has checked yet
        return ["those of its gradient"]
    return [f"{extra} per local step, and backward"] if extra > 0 else []
