"""Algorithms by name: ours, and the user's own (``fedga.plugins``)."""

from typing import Any

from fedga import plugins
from fedga.algorithms.astraea import Astraea
from fedga.algorithms.balanced_softmax import BalancedSoftmax
from fedga.algorithms.balancefl import BalanceFL
from fedga.algorithms.base import Algorithm, Batch, Client, RoundResult, Sent, Server, Setup, Trained, choice, option
from fedga.algorithms.ccvr import CCVR
from fedga.algorithms.checking.declared import check_declarations, check_options, check_overrides
from fedga.algorithms.class_balanced import ClassBalanced
from fedga.algorithms.climb import CLIMB
from fedga.algorithms.fed_focal import FedFocal
from fedga.algorithms.fedacg import FedACG
from fedga.algorithms.fedavg import FedAvg
from fedga.algorithms.fedbabu import FedBABU
from fedga.algorithms.feddecorr import FedDecorr
from fedga.algorithms.feddyn import FedDyn
from fedga.algorithms.fedetf import FedETF
from fedga.algorithms.fedexp import FedExP
from fedga.algorithms.fedga import FedGA, FedGABatch
from fedga.algorithms.fedinit import FedInit
from fedga.algorithms.fedlc import FedLC
from fedga.algorithms.fedlesam import FedLESAM
from fedga.algorithms.fedlmd import FedLMD
from fedga.algorithms.fednh import FedNH
from fedga.algorithms.fedntd import FedNTD
from fedga.algorithms.fedprox import FedProx
from fedga.algorithms.fedrl import FedRL
from fedga.algorithms.fedrs import FedRS
from fedga.algorithms.fedsam import FedSAM
from fedga.algorithms.fedvls import FedVLS
from fedga.algorithms.focal import Focal
from fedga.algorithms.ldahead import LDAHead
from fedga.algorithms.moon import MOON
from fedga.algorithms.options import with_options
from fedga.algorithms.parameters import Parameters
from fedga.algorithms.refit import over_base
from fedga.algorithms.resample import Resample
from fedga.algorithms.reweight import Reweight, ReweightGlobal
from fedga.algorithms.scaffold import SCAFFOLD
from fedga.errors import FedGAError

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Batch",
    "Client",
    "Parameters",
    "RoundResult",
    "Sent",
    "Server",
    "Setup",
    "Trained",
    "choice",
    "known_algorithms",
    "make_algorithm",
    "option",
    "own_algorithms",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedrl": FedRL,
    "climb": CLIMB,
    "fedntd": FedNTD,
    "fedga": FedGA,
    "fedga-batch": FedGABatch,
    "scaffold": SCAFFOLD,
    "feddyn": FedDyn,
    "fedsam": FedSAM,
    "fednh": FedNH,
    "resample": Resample,
    "reweight": Reweight,
    "reweight-global": ReweightGlobal,
    "focal": Focal,
    "class-balanced": ClassBalanced,
    "fed-focal": FedFocal,
    "balanced-softmax": BalancedSoftmax,
    "fedlc": FedLC,
    "fedrs": FedRS,
    "fedlmd": FedLMD,
    "fedvls": FedVLS,
    "balancefl": BalanceFL,
    "fedacg": FedACG,
    "fedlesam": FedLESAM,
    "fedexp": FedExP,
    "fedinit": FedInit,
    "astraea": Astraea,
    "feddecorr": FedDecorr,
    "fedetf": FedETF,
    "fedbabu": FedBABU,
    "moon": MOON,
    "lda-head": LDAHead,
    "ccvr": CCVR,
}


_PASSED: set[type[Algorithm]] = set()


def own_algorithms(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own algorithms by name, of her project file and of installed packages; their code is not run."""
    return plugins.parts("algorithms", ALGORITHMS, installed=installed)


def known_algorithms() -> dict[str, type[Algorithm]]:
    """Ours, and the user's own."""
    return {name: algorithm_class(name) for name in (*ALGORITHMS, *own_algorithms())}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of that name; the code of one of the user's own is run for it."""
    # Looking through all installed packages takes 10 ms, and a sweep asks hundreds of times for one of ours.
    mine = own_algorithms(installed=name not in ALGORITHMS)
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name not in mine:
        raise plugins.unknown("algorithms", name, [*ALGORITHMS, *mine])
    return as_algorithm(mine[name].load(), str(mine[name]))


def as_algorithm(found: object, name: str) -> type[Algorithm]:
    """What someone calls an algorithm, once it is one: a subclass of `Algorithm` whose declarations make sense."""
    if not isinstance(found, type) or not issubclass(found, Algorithm):
        raise FedGAError(f"{name} is not an algorithm: make it a class that inherits from fedga.algorithms.Algorithm")
    check_options(found, name)
    check_declarations(found, name)
    return found


def _checked(algorithm: Algorithm, name: str) -> Algorithm:
    """An algorithm, whose hooks have been checked in this process if it is the user's own."""
    kind = type(algorithm)
    if kind not in ALGORITHMS.values() and kind not in _PASSED:
        from fedga.algorithms.checking.battery import check_hooks

        check_hooks(algorithm, name)
        check_overrides(kind, name)
        _PASSED.add(kind)
    return algorithm


def make_algorithm(name: str | Algorithm | type[Algorithm], **options: Any) -> Algorithm:
    """An algorithm by name or by class, its options by keyword; text is converted to the option's type.

    One of the user's own has passed `fedga.algorithms.checking.battery.check_hooks`.

    >>> make_algorithm("fedprox", mu="0.01")
    FedProx(mu=0.01)
    """
    if isinstance(name, Algorithm):
        return _checked(name, type(name).__name__) if not options else make_algorithm(type(name), **options)
    if isinstance(name, str):
        kind, called = algorithm_class(name), name
    else:
        called = getattr(name, "__name__", str(name))
        kind = as_algorithm(name, called)
    kind = over_base(kind, options)
    return _checked(kind(**with_options("--algorithm", called, kind, options)), called)
