"""The data sets known by name: what they are, what their files are called, where on the Hugging Face Hub they lie.

Downloads are pinned to a full commit, so the name on the Hub may move on without changing a study. Where the SHA-256
of a file is known it stands here too; of the other files the Hub itself states the SHA-256 for the pinned commit, and
that one is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

_DIGITS = tuple("0123456789")
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)


@dataclass(frozen=True)
class HubFile:
    """One file of a Hub repository at its pinned commit; ``sha256`` is empty where only the Hub states it."""

    path: str
    sha256: str = ""


@dataclass(frozen=True)
class Hub:
    """Where a data set lies on the Hugging Face Hub."""

    repository: str
    revision: str  # a full commit, never a branch
    config: str
    train: HubFile
    test: HubFile

    @property
    def files(self) -> tuple[HubFile, HubFile]:
        return self.train, self.test


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    name: str
    title: str
    classes: int
    train_samples: int
    test_samples: int
    shape: tuple[int, int, int]  # channels, height, width
    licence: str
    citation: str
    class_names: tuple[str, ...] = ()  # empty where the files name the classes
    hub: Hub | None = None
    aliases: tuple[str, ...] = ()
    stems: tuple[str, ...] = ()  # Parquet files are STEM-train.parquet and STEM-test.parquet
    test_splits: tuple[str, ...] = ("test",)
    originals: tuple[str, ...] = ()  # the files of the data set's own authors

    @property
    def samples(self) -> int:
        return self.train_samples + self.test_samples

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The file names that are looked for, as a person would write them."""
        parquet = (f"{stem}-{split}.parquet" for stem in self.stems for split in ("train", self.test_splits[0]))
        return (*parquet, *self.originals)


_IDX = tuple(
    f"{part}-ubyte[.gz]" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def _hub(repository: str, revision: str, config: str, train: str = "", test: str = "") -> Hub:
    """A repository with one Parquet file per split, and their SHA-256 where it is known."""
    files = (
        HubFile(f"{config}/{split}-00000-of-00001.parquet", digest)
        for split, digest in (("train", train), ("test", test))
    )
    return Hub(repository, revision, config, *files)


_ALL = (
    Source(
        name="digits",
        title="Optical recognition of handwritten digits",
        classes=10,
        train_samples=1438,
        test_samples=359,
        shape=(1, 8, 8),
        licence="CC BY 4.0, inside scikit-learn (BSD-3-Clause)",
        citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Repository, 1998",
        class_names=_DIGITS,
        aliases=("sklearn-digits", "load-digits"),
    ),
    Source(
        name="mnist",
        title="MNIST handwritten digits",
        classes=10,
        train_samples=60_000,
        test_samples=10_000,
        shape=(1, 28, 28),
        licence="MIT, as stated on the Hub",
        citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        class_names=_DIGITS,
        hub=_hub(
            "ylecun/mnist",
            "77f3279092a1c1579b2250db8eafed0ad422088c",
            "mnist",
            "f2c01285a9f89399335b00ee4e8d499dc4e46db5e39c74903ce5618d895eb3bf",
            "d49fcf556ce25b002b302e318ce4a11098bbfe5d4499c3f35d7c72297c52374b",
        ),
        stems=("mnist",),
        originals=_IDX,
    ),
    Source(
        name="fashion-mnist",
        title="Fashion-MNIST articles of clothing",
        classes=10,
        train_samples=60_000,
        test_samples=10_000,
        shape=(1, 28, 28),
        licence="MIT",
        citation="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset, arXiv:1708.07747, 2017",
        class_names=_FASHION,
        hub=_hub("zalando-datasets/fashion_mnist", "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2", "fashion_mnist"),
        aliases=("fmnist",),
        stems=("fashion-mnist", "fashion_mnist"),
        originals=tuple(f"FashionMNIST/raw/{name}" for name in _IDX),
    ),
    Source(
        name="cifar10",
        title="CIFAR-10 small pictures",
        classes=10,
        train_samples=50_000,
        test_samples=10_000,
        shape=(3, 32, 32),
        licence="none stated by its authors; free for research with citation",
        citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        class_names=_CIFAR10,
        hub=_hub(
            "uoft-cs/cifar10",
            "0b2714987fa478483af9968de7c934580d0bb9a2",
            "plain_text",
            "8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
            "841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
        ),
        stems=("cifar10", "cifar-10"),
        originals=("cifar-10-batches-py/", "cifar-10-python.tar.gz"),
    ),
    Source(
        name="cifar100",
        title="CIFAR-100 small pictures, fine labels",
        classes=100,
        train_samples=50_000,
        test_samples=10_000,
        shape=(3, 32, 32),
        licence="none stated by its authors; free for research with citation",
        citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        class_names=tuple(_CIFAR100.split()),
        hub=_hub(
            "uoft-cs/cifar100",
            "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
            "cifar100",
            "694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
            "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
        ),
        stems=("cifar100", "cifar-100"),
        originals=("cifar-100-python/", "cifar-100-python.tar.gz"),
    ),
    Source(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        classes=10,
        train_samples=73_257,
        test_samples=26_032,
        shape=(3, 32, 32),
        licence="non-commercial use only",
        citation="Netzer et al., Reading digits in natural images with unsupervised feature learning, 2011",
        class_names=_DIGITS,
        hub=_hub("ufldl-stanford/svhn", "f9e1717d73324ebbc1ece84267ccd80d0aca0690", "cropped_digits"),
        aliases=("svhn-cropped",),
        stems=("svhn", "svhn_cropped"),
        originals=("train_32x32.mat", "test_32x32.mat"),
    ),
    Source(
        name="tiny-imagenet",
        title="Tiny-ImageNet, 200 classes of ImageNet at 64x64; its validation split is the test set",
        classes=200,
        train_samples=100_000,
        test_samples=10_000,
        shape=(3, 64, 64),
        licence="ImageNet's terms: non-commercial research and education",
        citation="Le and Yang, Tiny ImageNet visual recognition challenge, Stanford CS 231N, 2015",
        hub=Hub(
            "zh-plus/tiny-imagenet",
            "5a77092c28e51558c5586e9c5eb71a7e17a5e43f",
            "data",
            HubFile("data/train-00000-of-00001-1359597a978bc4fa.parquet"),
            HubFile("data/valid-00000-of-00001-70d52db3c749a935.parquet"),
        ),
        aliases=("tiny-imagenet-200",),
        stems=("tiny-imagenet", "tiny_imagenet"),
        test_splits=("valid", "validation", "val", "test"),
        originals=("tiny-imagenet-200/",),
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def plain(name: str) -> str:
    """A name without what people spell differently: case, hyphens, underscores and blanks.

    >>> plain("CIFAR-10") == plain("cifar10")
    True
    """
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


_BY_PLAIN_NAME = {
    plain(spelling): source for source in _ALL for spelling in (source.name, *source.aliases, *source.stems)
}


def find_source(name: str) -> Source | None:
    """The source of that name in any usual spelling.

    >>> find_source("Tiny-ImageNet").name
    'tiny-imagenet'
    """
    return _BY_PLAIN_NAME.get(plain(name))


# --- how data sets are called and ordered in tables -----------------------------------------------------------------

_TITLES = {  # in the order of the paper's tables
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "tiny-imagenet": "Tiny-ImageNet",
    "fashion-mnist": "Fashion-MNIST",
}


def dataset_name(dataset: str) -> str:
    """A data set as the literature writes it; one's own by the last part of its path.

    >>> dataset_name("cifar10"), dataset_name("digits"), dataset_name("/data/cats.csv")
    ('CIFAR-10', 'digits', 'cats.csv')
    """
    return _TITLES.get(dataset) or PurePath(dataset).name or dataset


def place_name(dataset: str, alpha: float | None) -> str:
    """
    >>> place_name("cifar10", 0.05), place_name("patients.csv", None)
    ('CIFAR-10, α = 0.05', 'patients.csv')
    """
    return dataset_name(dataset) + ("" if alpha is None else f", α = {alpha:g}")


def dataset_rank(dataset: str) -> tuple[int, str]:
    """Sorts data sets into the order of the paper's tables, others last and by name."""
    names = list(_TITLES)
    return (names.index(dataset) if dataset in names else len(names), dataset)
