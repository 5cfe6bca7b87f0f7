"""What an algorithm asks for beyond FedAvg, from what it declares: whether it fits where not everything is allowed."""

from fedga.algorithms.base import Algorithm, overrides


def sends_extra(algorithm: Algorithm) -> bool:
    """Whether anything but the model travels."""
    return bool(algorithm.uploads or algorithm.downloads or algorithm.final_uploads)


def more_than_sums(algorithm: Algorithm) -> list[str]:
    """What the server needs of single clients; nothing where it can run under secure aggregation."""
    single = [hook for hook in ("inspect", "weights", "groups") if overrides(algorithm, hook)]
    return single + [one.name for one in (*algorithm.uploads, *algorithm.final_uploads) if not one.summed]


def extra_passes(algorithm: Algorithm) -> list[str]:
    """Forward passes beside those of FedAvg, in words."""
    passes = ["1 per local step"] if algorithm.needs_global_logits else []
    passes += ["those of its gradient"] if overrides(algorithm, "gradient") else []
    passes += ["1 over all data of every client"] if algorithm.evaluates_all_clients else []
    return passes + (["over the server's samples"] if algorithm.auxiliary_samples else [])
