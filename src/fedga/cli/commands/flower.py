"""`fedga flower`: our algorithms as a Flower app, and real federations of a server and its sites."""

import contextlib
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedga.cli.commands.run import setting_option
from fedga.cli.console import fail, say
from fedga.common.files import require_regular
from fedga.errors import FedGAError, quoted, unknown_name
from fedga.spec.catalog import SOURCES, find_source
from fedga.spec.presets import preset_settings
from fedga.spec.settings import SETTINGS, parse_algorithm

app = typer.Typer(
    help=Path(__file__).with_suffix(".md").read_text("utf-8"), no_args_is_help=True, rich_markup_mode="markdown"
)

_INSECURE = (
    "WITHOUT ENCRYPTION AND WITHOUT KEYS: whoever reaches the server can read and change what is sent, pose as a site, "
    "or pose as the server, whose code runs at the sites; use --insecure for trials on one machine only"
)

_ALGORITHM = "As fedprox:mu=0.1; fedga algorithms lists all."
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and keys, for trials on one machine only.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; must be empty or not exist.")]
Server = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server, made by init.")]


@app.callback()
def _common() -> None:
    from fedga.flower import require_flower

    require_flower()


def _say_facts(headline: str, facts: Mapping[str, object]) -> None:
    """A headline, and a table of two columns."""
    say(headline)
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"  {name:<{width}}  {value}")


_CLIENTS = 10


@app.command("new")
def new(
    folder: NewFolder,
    algorithm: Annotated[str, typer.Option("--algorithm", help=_ALGORITHM, metavar="NAME")] = "fedga",
    data: Annotated[str, typer.Option("--data", help="A known data set, or your own path.", metavar="NAME")] = "digits",
) -> None:
    """Write a small Flower app that `flwr run` trains with Flower's simulation."""
    from fedga.flower.app_template import TEMPLATE, write_app

    _check_algorithms(algorithm)
    if find_source(data) is None:
        data = _samples(Path(data), unknown_name("data set", data, SOURCES))
    values = preset_settings("", data, 0.1).values
    names = ("model", "local_epochs", "batch_size", "lr", "server")
    chosen = {name.replace("_", "-"): values[name] for name in names}
    training = {"algorithm": algorithm, "rounds": 5, **chosen, "evaluate-every": 1, "seed": 0}
    partition = {"dataset": data, "partition": "dirichlet", "alpha": 0.1, "clients": _CLIENTS, "active": 5}
    sections = {
        "the data, and how they are partitioned over simulated clients": partition,
        "the training; fedga run --help names more settings": training,
        "where results go; fedga results reads them": {"out": str(folder.resolve() / "results")},
    }
    command = f'flwr run {shlex.quote(str(folder))} --stream --federation-config "num-supernodes={_CLIENTS}"'
    readme = (TEMPLATE / "README.md").read_text("utf-8")
    readme = readme.format(algorithm=algorithm, dataset=data, clients=_CLIENTS, command=command)
    description = f"{algorithm} on {Path(data).name} with fedga"
    with _usable(folder):
        write_app(folder, folder.resolve().name, description, sections, readme)
    facts = {"settings": folder / "pyproject.toml", "train": command, "look": f"fedga results {folder / 'results'}"}
    _say_facts(f"the app is in {folder}", facts)


def _samples(path: Path, missing: FedGAError) -> str:
    """The whole path of a file or folder: where Flower's programs run is not where the user is."""
    with contextlib.suppress(OSError):  # such as a name that is too long to be one
        if not path.is_dir():
            require_regular(path)
        return str(path.resolve())
    raise missing


def _not_there(flag: str, path: Path) -> FedGAError:
    return FedGAError(f"{flag} {quoted(path)} does not exist: give the path of a file or folder")


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Where a folder cannot be made or written, one sentence says so."""
    try:
        yield
    except OSError as error:
        raise FedGAError(f"{quoted(folder)} cannot be used ({error.strerror}): choose another folder") from error


def _check_algorithms(text: str, at_sites: bool = False) -> None:
    """Refuse algorithms that nobody knows and, of the user's own, those that sites do not run."""
    from fedga.algorithms import ALGORITHMS, make_algorithm, own_algorithms

    for written in text.split(","):
        name, options = parse_algorithm(written)
        make_algorithm(name, **dict(options))
        if at_sites and name not in ALGORITHMS:
            _check_of_project(own_algorithms()[name])


def _check_models(text: str) -> None:
    from fedga.models import MODELS, own_model, own_models
    from fedga.plugins import unknown

    for name in (each.strip() for each in text.split(",")):
        if (part := own_model(name)) is not None:
            part.load()
            _check_of_project(part)
        elif name not in MODELS:
            raise unknown("models", name, [*MODELS, *own_models()])


def _check_of_project(part: Any) -> None:
    if part.folder is None:
        cure = "name it in fedga.toml, here and at every site, and give that name"
        raise FedGAError(f"{part} is not of a project file, and sites run no other code that a message names: {cure}")


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server.")],
    address: Annotated[str | None, typer.Option(metavar="HOST[:PORT]", help="Where sites reach this machine.")] = None,
    sites: Annotated[str | None, typer.Option(metavar="LIST", help="Names of the sites, as a,b,c.")] = None,
    classes: Annotated[str | None, typer.Option(metavar="LIST", help="Names of the classes, for all sites.")] = None,
    server_data: Annotated[Path | None, typer.Option(metavar="PATH", help="Test samples held by the server.")] = None,
    algorithm: Annotated[str | None, typer.Option(metavar="NAME", help=_ALGORITHM)] = None,
    model: Annotated[str | None, setting_option("model", metavar="VALUE")] = None,
    rounds: Annotated[str | None, setting_option("rounds", metavar="VALUE")] = None,
    local_epochs: Annotated[str | None, setting_option("local_epochs", metavar="VALUE")] = None,
    batch_size: Annotated[str | None, setting_option("batch_size", metavar="VALUE")] = None,
    lr: Annotated[str | None, setting_option("lr", metavar="VALUE")] = None,
    seed: Annotated[str | None, setting_option("seed", "--seed", metavar="VALUE")] = None,
) -> None:
    """On the server: make a federation, with its certificates, keys and settings.

    Given again, it renews the server's certificate if that expires within two months, or if it or its key is missing;
    it never replaces a key.
    """
    from fedga.federation import ServerFolder, make_server_folder, parse_parties, renew_certificate

    asked: dict[str, Any] = dict(parse_parties(sites, classes))
    if server_data is not None:
        asked["server-data"] = _samples(server_data, _not_there("--server-data", server_data))
    training = {"algorithm": algorithm, "model": model, "rounds": rounds, "local_epochs": local_epochs}
    for name, text in {**training, "batch_size": batch_size, "lr": lr, "seed": seed}.items():
        if text is not None:
            asked[name.replace("_", "-")] = SETTINGS[name].kind.parse(SETTINGS[name].flag, text)
    server = ServerFolder(folder)
    with _usable(folder):
        if server.settings.exists():
            server.check_same(address, asked)
            renewed = renew_certificate(server)
            news = "the server's certificate is new, and sites need do nothing" if renewed else "nothing was changed"
            headline = f"{folder} is a federation already: {news}"
        else:
            if address is None or "sites" not in asked or "classes" not in asked:
                needed = "give --address HOST, --sites a,b, --classes x,y"
                raise FedGAError(f"{folder} is no federation yet: to make one, {needed}")
            _check_algorithms(algorithm or "fedga", at_sites=True)
            _check_models(model or "mlp")
            make_server_folder(folder, address, asked)
            headline = f"the federation is in {folder}"
    join = f"fedga flower join NAME --site NAME --server {server.address()} --ca ca.crt --data PATH"
    facts = {
        "settings": server.project,
        "keep safe": f"{server.authority_key}: only a new certificate needs it, so it may be stored offline",
        "send to all sites": f"{server.authority} (not secret)",
        "its fingerprint": f"{server.fingerprint()} (compare it by telephone)",
        **{f"at site {site}": join.replace("NAME", site) for site in server.sites()},
        "with their .pub files": f"fedga flower admit {folder} FILE...",
        "then": f"fedga flower serve {folder}",
    }
    _say_facts(headline, facts)


@app.command("join")
def join(
    folder: NewFolder,
    site: Annotated[str, typer.Option(metavar="NAME", help="Name of this site, as the server's owner knows it.")],
    server: Annotated[str, typer.Option(metavar="HOST[:PORT]", help="Where the server is.")],
    ca: Annotated[Path, typer.Option(metavar="FILE", help="The ca.crt that the server's owner sent.")],
    data: Annotated[Path, typer.Option(metavar="PATH", help="The site's samples: a file, or a folder of pictures.")],
    label_column: Annotated[str, typer.Option(metavar="NAME", help="Column of the table that holds the class.")] = "",
    report_class_counts: Annotated[
        bool, typer.Option("--report-class-counts", help="Report the samples per class to the server.")
    ] = False,
) -> None:
    """At a site: make its key pair and its settings."""
    from fedga.federation import make_site

    samples = _samples(data, _not_there("--data", data))
    options: dict[str, Any] = {"label_column": label_column, "report_class_counts": report_class_counts}
    with _usable(folder):
        made, public = make_site(folder, ca, site, server, data=samples, **options, device="auto")
    facts = {
        "settings": made.settings,
        "send to the server's owner": f"{made.public_key()} (not secret)",
        "its fingerprint": f"{public.fingerprint} (compare it by telephone)",
        "fingerprint of ca.crt": f"{made.fingerprint()} (compare it too)",
        "once it is admitted": f"fedga flower site {folder}",
    }
    _say_facts(f"site {site} is in {folder}", facts)


@app.command("admit")
def admit(
    folder: Server,
    keys: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The .pub files that sites have sent.")],
) -> None:
    """On the server: let sites take part, by their public keys; also while the server runs."""
    from fedga.federation import ServerFolder, admit_key

    server = ServerFolder(folder)
    with _usable(folder):
        new = {key.site for key, fresh in (admit_key(server, path) for path in keys) if fresh}
        admitted = server.admitted_keys()
    facts = dict.fromkeys(server.sites(), "not admitted yet")
    missing = [site for site in facts if site not in admitted]
    for site in facts.keys() & admitted.keys():
        facts[site] = f"{'newly ' * (site in new)}admitted, fingerprint {admitted[site].fingerprint}"
    next_step = f"waiting for the keys of {', '.join(missing)}" if missing else f"next: fedga flower serve {folder}"
    _say_facts(f"{len(admitted)} of {len(facts)} sites are admitted; {next_step}", facts)


@app.command("serve")
def serve(
    folder: Server,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on, if another one.")] = None,
    insecure: Insecure = False,
) -> None:
    """On the server: run the federation to its end, and continue where it was when it was stopped before.

    Run it on a machine where only trusted people have accounts: each of them can reach Flower's control of the runs,
    and so run code at every site.
    """
    from fedga.federation import ServerFolder, run_server

    server = ServerFolder(folder)
    server.address()
    if insecure:
        say(_INSECURE)
    with _until_stopped(f"stopped; everything so far is in {server.results}, and the same command continues"):
        run_server(server, insecure, port, say)
    say(f"the federation has finished: fedga results {server.results}")


@app.command("site")
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the site, made by join.")],
    insecure: Insecure = False,
) -> None:
    """At a site: take part in the federation until stopped with Ctrl-C; a server that is away is waited for."""
    from fedga.federation import SiteFolder, run_site

    place = SiteFolder(folder)
    place.site()
    if insecure:
        say(_INSECURE)
    with _until_stopped("stopped; the same command takes part again"):
        run_site(place, insecure, say)


@contextlib.contextmanager
def _until_stopped(sentence: str) -> Iterator[None]:
    """Any signal to end is like Ctrl-C: the children end first, and then a sentence is said."""

    def interrupt(number: int, frame: object) -> None:
        for every in signals:
            signal.signal(every, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in signals]
    try:
        yield
    except KeyboardInterrupt:
        fail(sentence, code=130)
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
