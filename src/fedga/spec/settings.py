"""Settings: of the data, of training, of what is measured; and `RunSpec`, all of them together with a name.

Whoever brings her own data and network (`simulate`, Flower) needs `TrainingSettings` alone. `RunSpec` is what a command
line describes and the store keeps. The name of a field is the name of its TOML key, of its column and (with hyphens) of
its flag.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from fedga import plugins
from fedga.common.ranges import shown_value, wrong_value
from fedga.errors import FedGAError, unknown_name
from fedga.spec.augmentation import Augment, Augmentation
from fedga.spec.kinds import Kind, Number, OneOf, PictureSize, Switch, Text

Options = tuple[tuple[str, float | str], ...]

PARTITIONS = ("dirichlet", "dirichlet-class", "even", "iid", "natural", "shards")
READ_ALPHA = ("dirichlet", "dirichlet-class", "even")  # the partitions that need alpha
SCHEDULES = ("constant", "cosine", "exponential")
OPTIMIZERS = ("sgd", "adam")
SERVERS = ("sgd", "momentum", "adam", "yogi", "adagrad")
PRECISIONS = ("float32", "tf32")

# Settings that came after the first runs were stored, at the value those runs had: a run keeps its id.
_LATER = {
    **{"precision": "float32", "select": "uniform", "augment": "", "centralize": False},
    **{"availability": "always", "stragglers": 0.0, "validate": 0.0, "resize": ""},
}

NORMS = ("batch", "group", "weight", "group+weight")
LONGEST_NAME = 80  # of an unknown setting, as it is repeated
SITES = "sites/"  # before the name of a federation, where a data set would be named: its samples lie at its sites

# Training computes in float32, which holds 1e-38 to 3e38. A rate is multiplied by gradients, by weights and by the last
# hundredth of a schedule, so that both ends keep a wide distance from those.
_TINY, _HUGE = 1e-30, 1e30
_COUNT, _FROM_0 = Number(whole=True, least=1), Number(whole=True, least=0)
_CLIENTS = replace(_COUNT, none=True)
_SHARE = Number(least=0, below=1, smallest=1e-6)
_RATE = Number(above=0, smallest=_TINY, largest=_HUGE)
_SERVER_RATE = replace(_RATE, none=True)
_DECAY = Number(least=0, smallest=_TINY, largest=_HUGE)
_CLIP = replace(_DECAY, none=True, zero_is_none=True)
_ALPHA = Number(above=0, none=True, smallest=1e-12, largest=1e12)  # beyond, draws are their limits to the last sample
_NEWEST = Number(least=0, most=1, smallest=1e-4)  # 1 minus less is not exact in float32


def _setting(default: Any, kind: Kind, help: str, flag: str = "") -> Any:  # noqa: A002 - the metadata key is "help"
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag})


def _flag(of: dataclasses.Field[Any]) -> str:
    return of.metadata["flag"] or "--" + of.name.replace("_", "-")


@dataclass(frozen=True)
class Named(OneOf):
    """One of a few names, or of the user's own (`fedga.plugins`)."""

    plugin_kind: str = ""

    def check(self, where: str, value: Any) -> str:
        ours = not isinstance(value, str) or value in self.names
        names = self.names if ours else (*self.names, *plugins.parts(self.plugin_kind))
        if str(value).partition(":")[0] in names and value not in names:
            besides = " but --server-rate" if self.plugin_kind == "servers" else ""
            none = f"a {plugins.KINDS[self.plugin_kind]} has none{besides}"
            raise FedGAError(f"{where} {value!r} has options, and {none}: leave them out")
        return OneOf(names).check(where, value)


class _Presence(Text):
    def check(self, where: str, value: Any) -> str | None:
        """A share may be given as a number."""
        return super().check(where, str(value) if type(value) in (int, float) else value)


class _Checked:
    """Brings every setting of a dataclass to its canonical form; a bad one is refused in the words of its flag."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            if kind := each.metadata.get("kind"):
                object.__setattr__(self, each.name, kind.check(_flag(each), getattr(self, each.name)))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, shortest exact numbers; what came later is named where it is used."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        values = {name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class DataSettings(_Checked):
    """Which samples, and who holds them."""

    dataset: str = _setting("digits", Text(), "data set: a known name, or the path of your own file or folder")
    label_column: str | None = _setting(None, Text(none=True), "column of your table that holds the class")
    client_column: str | None = _setting(None, Text(none=True), "column of your table that says whose sample it is")
    resize: str = _setting("", PictureSize(), "height x width to bring your pictures to: 32, or 32x48")
    partition: str = _setting("dirichlet", Named(PARTITIONS, "partitions"), "how samples are partitioned")
    alpha: float | None = _setting(None, _ALPHA, "Dirichlet concentration α: the smaller, the more skewed the classes")
    classes_per_client: int = _setting(2, _COUNT, "classes each client holds (partition shards)")
    clients: int | None = _setting(100, _CLIENTS, "number of clients (natural partitions bring their own)")
    validate: float = _setting(0.0, _SHARE, "share of each client's samples to score on, untrained")


@dataclass(frozen=True)
class TrainingSettings(_Checked):
    """How a federation trains, whatever its data, network and algorithm."""

    active: int = _setting(10, _COUNT, "clients sampled per round")
    select: str = _setting("uniform", Text(), "rule that selects clients, with options as name:option=value")
    availability: str = _setting(
        "always", _Presence(), "who is available: always, the share present in a round (0.8), or a CSV of round, client"
    )
    stragglers: float = _setting(0.0, Number(least=0, most=1), "share of clients that do part of the work")
    rounds: int = _setting(100, replace(_COUNT, largest=10**9), "rounds of training")
    local_epochs: int = _setting(2, replace(_COUNT, largest=10**4), "epochs each active client trains per round")
    batch_size: int = _setting(64, _COUNT, "samples per local step")
    optimizer: str = _setting("sgd", OneOf(OPTIMIZERS), "optimiser of the clients")
    lr: float = _setting(0.1, _RATE, "learning rate of the clients")
    lr_schedule: str = _setting("constant", OneOf(SCHEDULES), "how the clients' rate changes over rounds")
    momentum: float = _setting(0.0, Number(least=0, below=1), "momentum of the clients' SGD")
    weight_decay: float = _setting(0.0, _DECAY, "weight decay of the clients")
    clip: float | None = _setting(5.0, _CLIP, "largest gradient norm of a local step (0: no clipping)")
    centralize: bool = _setting(False, Switch(), "centralise gradients: subtract their mean over inputs")
    augment: str = _setting("", Augment(), "change training pictures: mirror,shift:4; alternatives between semicolons")
    precision: str = _setting("float32", OneOf(PRECISIONS), "precision of products on a GPU")
    standardize: bool = _setting(False, Switch(), "give pixels mean 0 and deviation 1 per channel")
    aggregation: str = _setting("samples", OneOf(("samples", "uniform")), "weight of a client's update")
    server: str = _setting("sgd", Named(SERVERS, "servers"), "optimiser of the server")
    server_rate: float | None = _setting(None, _SERVER_RATE, "rate of the server optimiser (none: its own default)")
    server_average: float = _setting(0.0, _NEWEST, "weight of the newest model in the average (0: none)")
    evaluate_every: int = _setting(1, _COUNT, "rounds between evaluations of the global model")
    diagnose_every: int = _setting(10, _FROM_0, "rounds between class-wise evaluations of clients (0: never)")
    seed: int = _setting(0, _FROM_0, "seed of partition, weights, client choice and batch order", flag="--seeds")


@dataclass(frozen=True)
class StudySettings(_Checked):
    """What is compared: network, algorithm, and the preset that the other settings began from."""

    model: str = _setting("mlp", Text(), "network")
    norm: str = _setting("batch", OneOf(NORMS), "normalisation layers of the network; weight: standardise weights")
    algorithm: str = _setting("fedga", Text(), "algorithm, with options as name:option=value")
    algorithm_options: Options = field(default=(), metadata={"help": "options of the algorithm after preset and text"})
    preset: str = _setting("", Text(empty=True), "preset: settings to start from")


@dataclass(frozen=True)
class RunSpec(TrainingSettings, StudySettings, DataSettings):
    """Everything that determines the numbers of one run.

    Two specs are the same run exactly when their ``run_id`` is the same. Values are brought to one canonical form, and
    a bad one is refused in the words of its flag.

    >>> spec = RunSpec(dataset="mnist", algorithm="fedprox:mu=0.01", alpha=1, seed=3)
    >>> spec.alpha, spec.algorithm_name, spec.algorithm_options
    (1.0, 'fedprox', (('mu', 0.01),))
    >>> RunSpec.from_json(spec.to_json()) == spec
    True
    >>> RunSpec(alpha=-1)
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: --alpha must be a number above 0 (or none), not -1
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        options = _check_options(self.algorithm_options) | dict(parse_algorithm(self.algorithm)[1])
        object.__setattr__(self, "algorithm_options", tuple(sorted(options.items())))
        if self.partition == "natural":
            object.__setattr__(self, "clients", None)  # the data say how many there are
        elif self.clients is None:
            raise FedGAError(f"--partition {self.partition} needs a number of --clients")
        if self.clients is not None and self.active > self.clients:
            too_many = f"--active {self.active} is more than --clients {self.clients}"
            raise FedGAError(f"{too_many}: give --active {self.clients} or fewer")
        Augmentation.parse("--augment", self.augment).check_suits(self.dataset)
        if self.alpha is None and self.partition in READ_ALPHA:
            raise FedGAError(f"--partition {self.partition} needs --alpha, for example --alpha 0.1")
        if self.alpha is not None and self.partition in set(PARTITIONS) - set(READ_ALPHA):
            needless = f"--alpha {self.alpha:g} means nothing with --partition {self.partition}"
            raise FedGAError(f"{needless}: leave it out, or choose --partition {', '.join(READ_ALPHA)}")

    @property
    def algorithm_name(self) -> str:
        """The algorithm without its options."""
        return parse_algorithm(self.algorithm)[0]

    @cached_property
    def run_id(self) -> str:
        """16 hexadecimal digits of the content: the same settings are the same run, on any machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The spec that ``to_json`` wrote; a key of a later version is refused, since its meaning is unknown here."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FedGAError(f"this is not the description of a run: {error}") from None
        if not isinstance(values, dict):
            raise FedGAError(f"the description of a run is a JSON object, not {shown_value(values)}")
        names = [f.name for f in dataclasses.fields(cls)]
        if strange := [name for name in values if name not in names]:
            raise unknown_name("setting", strange[0][:LONGEST_NAME], names)
        # A part of the user's own may be gone, or be in the fedga.toml of another folder: whoever runs it looks it up.
        usual = {"partition": "iid" if values.get("alpha") is None else "dirichlet", "server": "sgd"}
        ours = {"partition": PARTITIONS, "server": SERVERS}
        away = {name for name in usual if plugins.is_away(f"{name}s", values.get(name), ours[name])}
        spec = cls(**values | {name: usual[name] for name in away})
        for name in away:
            object.__setattr__(spec, name, values[name])
        return spec


@dataclass(frozen=True)
class Setting:
    """A field of RunSpec as the user meets it."""

    name: str
    flag: str
    help: str
    kind: Kind
    default: Any


SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(f.name, _flag(f), f.metadata["help"], f.metadata["kind"], f.default)
    for f in dataclasses.fields(RunSpec)
    if "kind" in f.metadata
}


def parse_algorithm(text: str) -> tuple[str, Options]:
    """Name and options of an algorithm written as ``name:option=value:option=value``.

    >>> parse_algorithm("climb:epsilon=0.1:dual_rate=2")
    ('climb', (('dual_rate', 2.0), ('epsilon', 0.1)))
    >>> parse_algorithm("fedga:variant=clamped")
    ('fedga', (('variant', 'clamped'),))
    """
    return parse_named("--algorithm", text, "fedprox:mu=0.01")


def parse_selection(text: str) -> tuple[str, Options]:
    """Name and options of a selection rule.

    >>> parse_selection("bandit:explore=0.5")
    ('bandit', (('explore', 0.5),))
    """
    return parse_named("--select", text, "bandit:explore=0.5")


def parse_named(flag: str, text: str, example: str) -> tuple[str, Options]:
    name, *rest = (part.strip() for part in text.split(":"))
    options: dict[str, float | str] = {}
    for part in rest:
        option, equals, value = (piece.strip() for piece in part.partition("="))
        option = option.replace("-", "_")
        if not equals and (name.endswith(".py") or "." in name):
            place = f"{flag} {text!r} is where a class is defined"
            raise FedGAError(f"{place}: name it in fedga.toml, as `fedga new` does, and give that name")
        if not name or not equals or not option.isidentifier() or not value:
            raise FedGAError(f"{flag} {text!r} has a bad option {part!r}: write name:option=value, as in {example}")
        if option in options:
            raise FedGAError(f"{flag} {text!r} gives the option {option!r} twice")
        options[option] = _option_value(f"{flag} {text!r}", option, value)
    if not name:
        raise FedGAError(f"{flag} {text!r} has no name: write name:option=value, as in {example}")
    return name, tuple(sorted(options.items()))


def _option_value(named: str, option: str, value: object) -> float | str:
    """Numbers as finite floats, anything else as text."""
    where = f"{named}: the option {option!r}"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise wrong_value(where, "a number or a text", value)
    try:
        number = float(value)
    except OverflowError:
        raise wrong_value(where, "a finite number", value) from None
    except ValueError:
        return str(value)
    if not math.isfinite(number):
        raise wrong_value(where, "a finite number", value)
    return number + 0.0


def _check_options(options: object) -> dict[str, float | str]:
    """The field ``algorithm_options``, which JSON hands over as lists."""
    if not isinstance(options, Iterable) or isinstance(options, (str, Mapping)):
        raise wrong_value("algorithm_options", "pairs of name and value", options)
    checked = {}
    for pair in options:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise wrong_value("algorithm_options", "pairs of name and value", pair)
        checked[pair[0]] = _option_value("--algorithm", *pair)
    return checked
