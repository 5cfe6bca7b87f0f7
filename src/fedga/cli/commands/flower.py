"""`fedga flower`: our algorithms as a Flower app, and real federations of a server and its sites."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedga.cli.commands.run import help_text
from fedga.cli.console import fail, say
from fedga.common.files import require_regular
from fedga.errors import FedGAError, quoted, unknown_name
from fedga.spec.catalog import SOURCES, find_source
from fedga.spec.presets import preset_settings
from fedga.spec.settings import SETTINGS, parse_algorithm

if TYPE_CHECKING:
    from fedga.federation.folder import ServerFolder
    from fedga.flower.app_template import Section
    from fedga.plugins import Plugin

app = typer.Typer(
    help="Train on Flower: simulated, or between real sites whose data stay where they are.\n\n"
    "On one machine, with Flower's simulation: `fedga flower new DIR`, then `flwr run DIR`.\n\n"
    "Between sites, in this order, where every step says what comes next:\n\n"
    "1. on the server: `fedga flower init DIR --address HOST --sites a,b --classes yes,no`\n\n"
    "2. at each site, with the server's `ca.crt`: "
    "`fedga flower join DIR --site a --server HOST --ca ca.crt --data PATH`\n\n"
    "3. on the server, with each site's `.pub` file: `fedga flower admit DIR a.pub b.pub`\n\n"
    "4. on the server: `fedga flower serve DIR`\n\n"
    "5. at each site: `fedga flower site DIR`\n\n"
    "Steps 4 and 5 go in any order, and may be stopped and given again: training continues.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_INSECURE_SERVER = (
    "WITHOUT ENCRYPTION AND WITHOUT KEYS: whoever reaches this port can read the models, pose as a site and send "
    "false updates; use --insecure for trials on one machine only"
)
_INSECURE_SITE = (
    "WITHOUT ENCRYPTION AND WITHOUT KEYS: whoever is on the way can read and change what is sent, and pose as the "
    "server, whose code runs here; use --insecure for trials on one machine only"
)

Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and keys, for trials on one machine only.")]


@app.callback()
def _common() -> None:
    from fedga.flower import require_flower

    require_flower()


def _setting(name: str, *flags: str) -> Any:
    setting = SETTINGS[name]
    return typer.Option(*(flags or (setting.flag,)), help=help_text(name), metavar="VALUE", show_default=False)


Algorithm = Annotated[str, typer.Option("--algorithm", help=help_text("algorithm"), metavar="NAME")]


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the app; not there yet, or empty.")],
    algorithm: Algorithm = "fedga",
    data: Annotated[str, typer.Option("--data", help=help_text("dataset"), metavar="NAME")] = "digits",
) -> None:
    """Write a small Flower app that `flwr run` trains with Flower's simulation."""
    _check_algorithm(algorithm)
    with _usable(folder):
        _write_app(folder, algorithm, _dataset(data))


def _write_app(folder: Path, algorithm: str, dataset: str) -> None:
    from fedga.flower.app_template import Section, write_app

    values = preset_settings("", dataset, 0.1).values
    sections = [
        Section("the data, and how they are dealt out to simulated clients", _simulated_data(dataset)),
        Section("the training; more settings by the names that fedga run --help shows", _training(algorithm, values)),
        Section("where results go; fedga results reads them", {"out": str(folder.resolve() / "results")}),
    ]
    command = f'flwr run {shlex.quote(str(folder))} --stream --federation-config "num-supernodes={_CLIENTS}"'
    readme = _NEW_README.format(algorithm=algorithm, dataset=dataset, clients=_CLIENTS, command=command)
    description = f"{algorithm} on {Path(dataset).name} with fedga"
    write_app(folder, folder.resolve().name, description, sections, readme)
    say(f"the app is in {folder}, its settings in {folder / 'pyproject.toml'}; to train it: {command}")
    say(f"afterwards: fedga results {folder / 'results'}")


_CLIENTS = 10
_NEW_README = """\
# {algorithm} on {dataset}, as a Flower app

    {command}

trains it with Flower's simulation. The settings are in `pyproject.toml`; `num-supernodes` is the number of `clients`
there ({clients}). Results go to the folder `out` there, one per set of settings: `fedga results` prints them,
`fedga report` makes a page of them, and a run that was stopped continues where it was.

The code of the algorithms is that of the installed fedga; `fedga_app/` only names it.
"""


def _simulated_data(dataset: str) -> dict[str, Any]:
    partition = {"partition": "dirichlet", "alpha": 0.1, "clients": _CLIENTS, "active": 5}
    return {"dataset": dataset, **partition}


def _training(algorithm: str, values: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: values[name] for name in ("model", "local_epochs", "batch_size", "lr", "server")}
    settings = {"algorithm": algorithm, "rounds": 5, **chosen, "evaluate_every": 1, "seed": 0}
    return {name.replace("_", "-"): value for name, value in settings.items()}


def _dataset(name: str) -> str:
    """A name we know, or the whole path of a file: where Flower's programs run is not where the user is."""
    if find_source(name) is not None:
        return name
    if not _is_there(Path(name)):
        raise unknown_name("data set", name, SOURCES)
    return str(_samples("--data", Path(name)))


def _samples(flag: str, path: Path) -> Path:
    """The whole path of samples that are there: a file or a folder, and nothing that is read without end."""
    if not _is_there(path):
        raise FedGAError(f"{flag} {quoted(path)} is not there: give the path of a file or folder")
    if not path.is_dir():
        require_regular(path)
    return path.resolve()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long to be one
        return False


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Where a folder cannot be made or written, one sentence says so."""
    try:
        yield
    except OSError as error:
        raise FedGAError(f"{quoted(folder)} cannot be used ({error.strerror}): choose another folder") from error


def _check_model(text: str) -> None:
    """Refuse networks that nobody knows, and those that no site would run."""
    from fedga.models import MODELS, own_model, own_models
    from fedga.plugins import unknown

    for name in (each.strip() for each in text.split(",")):
        part = own_model(name)
        if part is not None:
            part.load()
            _check_of_project(part)
        elif name not in MODELS:
            raise unknown("models", name, [*MODELS, *own_models()])


def _check_algorithm_of_project(text: str) -> None:
    from fedga.algorithms import ALGORITHMS, own_algorithms

    names = {parse_algorithm(written)[0] for written in text.split(",")} - ALGORITHMS.keys()
    for name in sorted(names):
        _check_of_project(own_algorithms()[name])


def _check_of_project(part: Plugin) -> None:
    if part.folder is None:
        raise FedGAError(
            f"{part} is not of a project file, and sites run no other code that a message names: name it in "
            "fedga.toml, here and at every site, and give that name"
        )


def _check_algorithm(text: str) -> None:
    from fedga.algorithms import make_algorithm

    for written in text.split(","):
        name, options = parse_algorithm(written)
        make_algorithm(name, **dict(options))


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server.")],
    address: Annotated[str | None, typer.Option(metavar="HOST[:PORT]", help="Where sites reach this machine.")] = None,
    sites: Annotated[str | None, typer.Option(metavar="LIST", help="Names of the sites, as a,b,c.")] = None,
    classes: Annotated[str | None, typer.Option(metavar="LIST", help="Names of the classes, for all sites.")] = None,
    server_data: Annotated[Path | None, typer.Option(metavar="PATH", help="Test samples held by the server.")] = None,
    algorithm: Annotated[str | None, _setting("algorithm")] = None,
    model: Annotated[str | None, _setting("model")] = None,
    rounds: Annotated[str | None, _setting("rounds")] = None,
    local_epochs: Annotated[str | None, _setting("local_epochs")] = None,
    batch_size: Annotated[str | None, _setting("batch_size")] = None,
    lr: Annotated[str | None, _setting("lr")] = None,
    seed: Annotated[str | None, _setting("seed", "--seed")] = None,
) -> None:
    """On the server: make a federation, with its certificates, keys and settings.

    Given again, it renews the server's certificate if that ends within two months, or if it or its key is missing; it
    never replaces a key that is there.
    """
    from fedga.federation.folder import ServerFolder, make_server
    from fedga.federation.names import parse_address

    written = {"algorithm": algorithm, "model": model, "rounds": rounds, "local_epochs": local_epochs}
    written |= {"batch_size": batch_size, "lr": lr, "seed": seed}
    asked = {**_parties(sites, classes, server_data), **_parsed(written)}
    server = ServerFolder(folder)
    with _usable(folder):
        is_one = server.exists()
    if is_one:
        _init_again(server, address, asked)
        return
    if address is None or "sites" not in asked or "classes" not in asked:
        raise FedGAError(f"{folder} is no federation yet: to make one, give --address HOST, --sites a,b, --classes x,y")
    place = parse_address(address)
    if algorithm is not None:
        _check_algorithm(algorithm)
        _check_algorithm_of_project(algorithm)
    if model is not None:
        _check_model(model)
    with _usable(folder):
        make_server(folder, place, _federation(folder, asked))
    say(f"the federation is in {folder}; its settings are in {server.app / 'pyproject.toml'}")
    say(
        f"{server.authority_key} is needed for a new certificate of the server only, not to serve: keep a backup of "
        "it, and the file itself offline if you like"
    )
    _say_what_comes_next(server)


def _init_again(server: ServerFolder, address: str | None, asked: Mapping[str, Any]) -> None:
    from fedga.federation.folder import renew
    from fedga.federation.names import parse_address

    if address is not None and parse_address(address) != server.address():
        raise FedGAError(
            f"{server.path} is the federation at {server.address()}, and its certificate is made out to that address: "
            "choose a new folder for another address, with new keys"
        )
    config = server.config()
    for name, value in asked.items():
        if config.get(name) != value:
            path = server.app / "pyproject.toml"
            raise FedGAError(f"{server.path} has its settings already: to change {name}, edit {path}")
    if renew(server):
        say("the server's certificate is new; the sites need not do anything")
    else:
        say(f"{server.path} is a federation already; its keys and certificates are left as they are")
    _say_what_comes_next(server)


def _parties(sites: str | None, classes: str | None, server_data: Path | None) -> dict[str, Any]:
    """Who takes part with what, as far as it was given, by its name in the app's settings."""
    from fedga.federation.names import check_class, check_site, parse_names

    given: dict[str, Any] = {}
    if sites is not None:
        given["sites"] = ",".join(check_site(site, "--sites:") for site in parse_names(sites, "--sites"))
    if classes is not None:
        agreed = parse_names(classes, "--classes")
        if len(agreed) < 2:
            raise FedGAError(
                f"--classes {classes!r} is a single class: name all that any site may hold, as healthy,ill"
            )
        given["classes"] = ",".join(map(check_class, agreed))
    if server_data is not None:
        given["server-data"] = str(_samples("--server-data", server_data))
    return given


def _parsed(written: Mapping[str, str | None]) -> dict[str, Any]:
    """Settings of a run that were given, checked, by their names in the app's settings."""
    return {
        name.replace("_", "-"): SETTINGS[name].kind.parse(SETTINGS[name].flag, text)
        for name, text in written.items()
        if text is not None
    }


def _federation(folder: Path, asked: Mapping[str, Any]) -> list[Section]:
    """All settings of a federation's app."""
    from fedga.flower.app_template import Section

    names = ("algorithm", "model", "rounds", "local_epochs", "batch_size", "lr", "server", "standardize", "seed")
    training = {name.replace("_", "-"): SETTINGS[name].default for name in names}
    server = {"server-data": "", "out": str(folder.resolve() / "results"), "device": "auto"}
    before = {"wait-for-sites": 600, "min-sites": 0}
    during = {"round-timeout": 3600, "min-replies": 0}
    groups: dict[str, dict[str, Any]] = {
        "the sites, whose order numbers them, and the classes they agreed on": {"sites": "", "classes": ""},
        "the training; more settings by the names that fedga run --help shows, as active, the sites drawn in a round "
        "(else all)": training,
        "on the server: test samples (none if empty), the folder for results, what computes": server,
        "before the first round: seconds to wait for sites, and how many must be there (0: all)": before,
        "in a round: seconds to wait for a slow site, and how many must answer (0: half of those asked)": during,
    }
    return [
        Section(heading, {name: asked.get(name, value) for name, value in group.items()})
        for heading, group in groups.items()
    ]


def _say_what_comes_next(server: ServerFolder) -> None:
    from fedga.federation.certificates import fingerprint

    say(f"give {server.authority} to every site; it is not secret; its fingerprint: {fingerprint(server.authority)}")
    say("there, where fedga[flower] is installed as here:")
    for site in server.sites():
        say(f"    fedga flower join {site} --site {site} --server {server.address()} --ca ca.crt --data PATH")
    say(f"for the .pub files that come back: fedga flower admit {server.path} FILE...")
    say(f"then: fedga flower serve {server.path}")


@app.command("join")
def join(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the site; not there yet, or empty.")],
    site: Annotated[str, typer.Option(metavar="NAME", help="Name of this site, as the server's owner knows it.")],
    server: Annotated[str, typer.Option(metavar="HOST[:PORT]", help="Where the server is.")],
    ca: Annotated[Path, typer.Option(metavar="FILE", help="The ca.crt that the server's owner sent.")],
    data: Annotated[Path, typer.Option(metavar="PATH", help="The site's samples: a file, or a folder of pictures.")],
    label_column: Annotated[str, typer.Option(metavar="NAME", help="Column of the table that holds the class.")] = "",
    report_class_counts: Annotated[
        bool, typer.Option("--report-class-counts", help="Tell the server how many samples of each class are here.")
    ] = False,
) -> None:
    """At a site: make its key pair and its settings."""
    from fedga.federation.certificates import fingerprint
    from fedga.federation.folder import make_site
    from fedga.federation.names import check_site, parse_address

    settings: dict[str, Any] = {"site": check_site(site), "server": str(parse_address(server, "--server"))}
    settings |= {"data": str(_samples("--data", data)), "label-column": label_column}
    settings |= {"report-class-counts": report_class_counts, "device": "auto"}
    with _usable(folder):
        made, public = make_site(folder, ca, settings)
    say(f"the server's owner should see the same fingerprint of ca.crt: {fingerprint(made.authority)}")
    say(
        f"send {made.public_key()} to the server's owner; it is not secret, and its fingerprint is {public.fingerprint}"
    )
    say(f"once it is admitted: fedga flower site {folder} (settings: {made.settings})")


@app.command("admit")
def admit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server.")],
    keys: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The .pub files that sites have sent.")],
) -> None:
    """On the server: let sites take part, by their public keys; also while the server runs."""
    from fedga.federation.folder import ServerFolder
    from fedga.federation.folder import admit as admit_key

    server = ServerFolder(folder)
    for path in keys:
        with _usable(folder):
            key, fresh = admit_key(server, path)
        said = "is admitted" if fresh else "was admitted already"
        say(f"{key.site} {said}; the site should see the same fingerprint: {key.fingerprint}")
    missing = server.missing()
    say(f"not admitted yet: {', '.join(missing)}" if missing else f"all sites are: fedga flower serve {folder}")


@app.command("serve")
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Listen here, not on the federation's port.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """On the server: run the federation to its end, and go on where it was when it was stopped before.

    Run it on a machine where only trusted people have accounts: each of them can reach Flower's control of the runs,
    and so run code at every site.
    """
    from fedga.federation.folder import ServerFolder
    from fedga.federation.serve import serve as serve_folder

    server = ServerFolder(folder)
    server.address()
    if insecure:
        say(_INSECURE_SERVER)
    with _until_stopped(f"stopped; everything so far is in {server.results}, and the same command continues"):
        serve_folder(server, insecure, port, say)
    say(f"the federation has finished: fedga results {server.results}")


@app.command("site")
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the site.")],
    insecure: Insecure = False,
) -> None:
    """At a site: take part in the federation until stopped with Ctrl-C; a server that is away is waited for."""
    from fedga.federation.folder import SiteFolder
    from fedga.federation.site import attend

    place = SiteFolder(folder)
    place.site()
    if insecure:
        say(_INSECURE_SITE)
    with _until_stopped("stopped; the same command takes part again"):
        attend(place, insecure, say)


@contextlib.contextmanager
def _until_stopped(sentence: str) -> Iterator[None]:
    """Being told to end, by whatever signal, is like Ctrl-C: the children end first, and then a sentence is said."""

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
