"""Prior correction: what a model would have predicted of classes that are equally frequent.

A model that was trained on classes of shares π predicts p(c | x), which by Bayes' rule is proportional to p(x | c) π_c.
Dividing by π_c, or subtracting log π_c from the logit, leaves what it says of a class apart from how frequent that was:

    argmax_c  z_c - τ log π_c

τ = 1 moves the decision threshold to where it belongs for classes of equal frequency (Elkan 2001), τ = 0 leaves it
where it is, and other τ are the post-hoc logit adjustment of Menon et al. 2021. Nothing is trained.
"""

from collections.abc import Sequence

import numpy as np

from fedga.errors import FedGAError


def prior_shift(class_counts: Sequence[float] | np.ndarray, tau: float = 1.0) -> np.ndarray:
    """What to add to logits, or to logarithms of probabilities: ``-τ log π_c``, float64 [classes].

    ``class_counts``: training samples of each class, or their shares. The most frequent class has 0, since only
    differences matter; so have all where the counts are equal, or ``tau`` is 0. A class without a training sample
    counts as one sample (of shares, as the rarest class): the model has seen nothing that could be divided out.

    >>> probs = np.array([0.9, 0.1])  # no evidence at all: these are the shares that the model was trained on
    >>> scores = np.exp(np.log(probs) + prior_shift([90, 10]))
    >>> scores / scores.sum()
    array([0.5, 0.5])
    >>> prior_shift([7, 7]), prior_shift([90, 10], tau=0)
    (array([0., 0.]), array([0., 0.]))
    """
    counts = np.asarray(class_counts, dtype=np.float64)
    if counts.ndim != 1 or not counts.size or not (np.isfinite(counts) & (counts >= 0)).all():
        raise FedGAError("class counts must be [classes], each a number of samples that is not negative")
    if not counts.any():
        raise FedGAError("the class counts are all 0: say how many samples of each class were trained on")
    if not np.isfinite(tau):
        raise FedGAError(f"tau must be a finite number, not {tau}")
    seen = np.where(counts > 0, counts, min(1.0, counts[counts > 0].min()))
    return tau * (np.log(seen.max()) - np.log(seen))
