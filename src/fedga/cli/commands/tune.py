"""`fedga tune`: the learning rate by grid search on one algorithm, then the same rate for all."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedga.cli.commands.choose import VALIDATE
from fedga.cli.commands.run import default_folder, refuse_unknown, setting_option
from fedga.cli.console import out, say
from fedga.cli.training import (
    Cluster,
    DataDir,
    Device,
    Devices,
    Program,
    Threads,
    Track,
    names_clients,
    own_option,
    prepare,
    train,
)
from fedga.errors import FedGAError
from fedga.paper import LEARNING_RATES
from fedga.spec.grid import build_sweep, parse_list
from fedga.spec.settings import SETTINGS, RunSpec, parse_algorithm

DEFAULT_RATES = ",".join(f"{rate:g}" for rate in LEARNING_RATES)


def tune(
    dataset: Annotated[str | None, setting_option("dataset")] = None,
    alpha: Annotated[str | None, setting_option("alpha")] = None,
    lr: Annotated[str, typer.Option("--lr", help="learning rates to try", metavar="LIST")] = DEFAULT_RATES,
    seeds: Annotated[str | None, setting_option("seed")] = None,
    on: Annotated[str, typer.Option("--on", help="algorithm the rate is chosen on", metavar="NAME")] = "fedavg",
    then: Annotated[str | None, typer.Option(help="algorithms to run with the chosen rate", metavar="LIST")] = None,
    preset: Annotated[str | None, setting_option("preset")] = None,
    optimizer: Annotated[str | None, setting_option("optimizer")] = None,
    model: Annotated[str | None, setting_option("model")] = None,
    rounds: Annotated[str | None, setting_option("rounds")] = None,
    validate: Annotated[
        str, typer.Option(help="Share of samples to choose by; 0: the test split.", metavar="SHARE")
    ] = VALIDATE,
    data_dir: DataDir = None,
    device: Device = None,
    out_dir: Annotated[Path | None, own_option("--out", "Folder for results; the same one continues.")] = None,
    threads: Threads = None,
    track: Track = None,
    devices: Devices = None,
    cluster: Cluster = None,
) -> None:
    """Grid search of the learning rate, for each data set and α on its own.

    The rate is chosen on samples that are held out of every client's training; the test split is not looked at. The
    paper chose its rates on FedAvg and used them for every algorithm; this does the same and goes on with --then, whose
    runs train on all samples and are scored on the test split:

        fedga tune --dataset mnist --alpha 0.1,1 --lr 1,0.1,0.01 --then fedavg,fedntd,fedga
    """
    written = {"dataset": dataset, "alpha": alpha, "seed": seeds, "preset": preset, "optimizer": optimizer}
    written |= {"model": model, "rounds": rounds, "lr": lr, "algorithm": on, "validate": validate}
    given = {name: parse_list(name, text) for name, text in written.items() if text is not None}
    if len(given["algorithm"]) > 1:
        raise FedGAError(f"--on {on!r} lists several algorithms: the rate is chosen on one; --then takes a list")
    for name in ("preset", "optimizer", "model", "rounds", "validate"):
        if len(given.get(name, ())) > 1:
            raise FedGAError(f"{SETTINGS[name].flag} lists several values: a rate is chosen for one, so give one")
    given.setdefault("dataset", ["digits"])
    others = [] if then is None else parse_list("algorithm", then)
    sweep = build_sweep(given, names_clients=names_clients)
    refuse_unknown(sweep.runs)
    from fedga.algorithms import make_algorithm

    for name, options in map(parse_algorithm, others):  # each can be made: known before the search, not after it
        make_algorithm(name, **dict(options))
    program = Program(data_dir, device, out_dir, threads, track=track, devices=devices, cluster=cluster)
    folder = out_dir or default_folder(sweep.runs).with_name(f"tune-{default_folder(sweep.runs).name}")
    prepared = prepare(sweep.runs, program, active_chosen=False)
    train(prepared, folder, program, axes=(*sweep.axes, "validate"))
    chosen = _show(folder, prepared.specs)
    if others and chosen:
        best = [spec for spec in prepared.specs if chosen.get((spec.dataset, spec.alpha)) == spec.lr]
        _go_on(folder, best, others, program)
    say(f"a page of it: fedga report {folder}")


def _show(folder: Path, specs: Sequence[RunSpec]) -> dict[tuple[str, float | None], float]:
    """Show the table, the picture and the chosen rates; returns them."""
    from fedga.paper import chosen_rates, tuning_headline, tuning_picture, tuning_table
    from fedga.report.curves import read_curves
    from fedga.report.figures import save
    from fedga.report.writers import terminal, write_table

    curves = read_curves(folder, {spec.run_id for spec in specs}, ("lr",))
    chosen, table = chosen_rates(curves), tuning_table(curves)
    write_table(table, folder / "tables")
    out.print(terminal(table, width=out.width))
    out.print(tuning_headline(chosen) or "Every rate diverged: try smaller ones with --lr.", highlight=False)
    try:
        say("picture: " + ", ".join(map(str, save(tuning_picture(curves), folder / "figures" / "tuning"))))
    except FedGAError as error:
        say(f"no picture: {error}")
    return chosen


def _go_on(folder: Path, best: Sequence[RunSpec], algorithms: Sequence[str], program: Program) -> None:
    """The listed algorithms, each with the rate that was chosen for its data set and α."""
    from fedga.cli.summary import print_summary
    from fedga.spec.presets import algorithm_defaults

    say("with the chosen rates, on all samples, scored on the test split:")
    runs = []
    for spec, algorithm in itertools.product(best, algorithms):  # with the paper's options for it on these data
        options = algorithm_defaults(spec.dataset, parse_algorithm(algorithm)[0])
        runs.append(replace(spec, algorithm=algorithm, algorithm_options=options, validate=0.0))
    train(prepare(runs, program), folder, program, axes=("lr", "validate"))
    print_summary(folder, {spec.run_id for spec in runs}, out)
