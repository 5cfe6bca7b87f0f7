"""`fedga choose`: a tournament of methods and settings on the user's data, and the one to use."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedga.cli.commands.run import default_folder, setting_option
from fedga.cli.console import fail, out, say
from fedga.cli.training import DataDir, Device, Prepared, Program, Threads, names_clients, own_option, prepare, train
from fedga.errors import FedGAError, check_known
from fedga.spec.grid import build_sweep, parse_list
from fedga.spec.presets import PRESETS
from fedga.spec.settings import SETTINGS, RunSpec

SEEDS, VALIDATE = "0-4", "0.1"
METRICS = ("accuracy", "macro_f1", "balanced_accuracy")
_LISTS = ("seed", "algorithm", "preset")  # flags that take several values; of the others a choice is made for one
_POINTS = 60  # evaluations of a curve
_FEW_HELD_OUT = 200
_SHOWN = 10  # rows of the table in the terminal
_LIMITS = "Limits"


def choose(
    dataset: Annotated[str | None, setting_option("dataset")] = None,
    alpha: Annotated[str | None, setting_option("alpha", metavar="NUMBER")] = None,
    partition: Annotated[str | None, setting_option("partition", metavar="NAME")] = None,
    clients: Annotated[str | None, setting_option("clients", metavar="NUMBER")] = None,
    active: Annotated[str | None, setting_option("active", metavar="NUMBER")] = None,
    client_column: Annotated[str | None, setting_option("client_column", metavar="NAME")] = None,
    label_column: Annotated[str | None, setting_option("label_column", metavar="NAME")] = None,
    resize: Annotated[str | None, setting_option("resize", metavar="HxW")] = None,
    model: Annotated[str | None, setting_option("model", metavar="NAME")] = None,
    norm: Annotated[str | None, setting_option("norm", metavar="NAME")] = None,
    like: Annotated[
        Path | None, typer.Option(help="CSV of clients × classes: deal --dataset like that.", metavar="FILE")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Algorithms that take part, else all.", metavar="LIST", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Presets to try: {', '.join(PRESETS)}.", metavar="LIST", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, the same for all candidates.", metavar="LIST")] = SEEDS,
    validate: Annotated[
        str, typer.Option(help="Share of each client's samples to choose by.", metavar="SHARE")
    ] = VALIDATE,
    by: Annotated[str, typer.Option("--by", help=f"What is compared: {', '.join(METRICS)}.", metavar="NAME")] = METRICS[
        0
    ],
    rounds: Annotated[
        str | None, own_option("--rounds", "Rounds you can afford for one training.", "NUMBER", _LIMITS)
    ] = None,
    local_epochs: Annotated[str | None, setting_option("local_epochs", metavar="NUMBER", panel=_LIMITS)] = None,
    sends: Annotated[
        str, own_option("--sends", "Beside the model: nothing, or anything.", "WHAT", _LIMITS)
    ] = "anything",
    secure_aggregation: Annotated[
        bool, own_option("--secure-aggregation", "The server sees sums over clients only.", None, _LIMITS)
    ] = False,
    no_extra_pass: Annotated[
        bool, own_option("--no-extra-pass", "No forward pass beside those of FedAvg.", None, _LIMITS)
    ] = False,
    then_run: Annotated[bool, own_option("--then-run", "Train the choice on all samples, and test it.")] = False,
    data_dir: DataDir = None,
    device: Device = None,
    out_dir: Annotated[Path | None, own_option("--out", "Folder for results; the same one continues.")] = None,
    threads: Threads = None,
) -> None:
    """Find the method and the settings to use on these data, in a quarter of the time of trying all of them.

    Every algorithm runs under a few settings. After some rounds the worse half stops, and so on. A candidate is judged
    on samples that are held out of every client's training; the test split is not looked at. In the end the best are
    compared with FedAvg, seed by seed, and where none is clearly better the answer is FedAvg:

        fedga choose --dataset patients.csv --client-column hospital --sends nothing --rounds 50

    A tournament that was stopped, by Ctrl-C or a crash, goes on where it was when the same command is given again.
    """
    from fedga.study.candidates import Limits

    check_known("--sends", sends, ("anything", "nothing"))
    check_known("--by", by, METRICS)
    written = {"dataset": dataset, "alpha": alpha, "partition": partition, "clients": clients, "active": active}
    written |= {
        "client_column": client_column,
        "label_column": label_column,
        "model": model,
        "norm": norm,
        "resize": resize,
    }
    written |= {"seed": seeds, "rounds": rounds, "local_epochs": local_epochs, "algorithm": algorithm, "preset": preset}
    common = {name: parse_list(name, text) for name, text in written.items() if text is not None}
    for name, values in common.items():
        if len(values) > 1 and name not in _LISTS:
            raise FedGAError(f"{SETTINGS[name].flag} lists several values: a choice is made for one, so give one")
    common.setdefault("dataset", ["digits"])
    limits = Limits(sends == "nothing", secure_aggregation, no_extra_pass)
    program = Program(data_dir, device, out_dir, threads)
    if like is not None:
        common |= _deal(common, like, program)
    plan = _plan(common, parse_list("validate", validate), limits, program)
    folder = out_dir or default_folder(plan.prepared.specs).with_name(
        f"choose-{default_folder(plan.prepared.specs).name}"
    )
    _show(plan, folder, by, program, then_run)


def _deal(common: Mapping[str, list[Any]], like: Path, program: Program) -> dict[str, list[Any]]:
    """Where only label counts are known: a file of samples dealt to match them, and the settings that say so."""
    import io

    import numpy as np

    from fedga.common.files import write_whole
    from fedga.common.streams import numpy_generator
    from fedga.data import load_dataset
    from fedga.data.assemble import fingerprint
    from fedga.data.counts import LabelCounts, deal

    for name in ("alpha", "partition", "clients", "client_column"):
        if name in common:
            raise FedGAError(f"{SETTINGS[name].flag} says who holds what, and so does --like: give one of them")
    wanted = LabelCounts.read(like)
    [name], columns = common["dataset"], {key: common.get(key, [None])[0] for key in ("label_column", "resize")}
    usual = build_sweep({"dataset": [name], "algorithm": ["fedavg"], "preset": ["paper"]}).runs[0]
    from fedga.cli.progress import decoding

    with decoding() as progress:
        dataset = load_dataset(usual.dataset, data_dir=program.data_dir, progress=progress, **columns)
    dealt = deal(dataset, wanted, numpy_generator(0, "counts"))
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **dealt.arrays)
    digest = hashlib.sha256(f"{fingerprint(dataset)} {wanted}".encode() + wanted.counts.tobytes()).hexdigest()[:8]
    folder = program.out or Path("runs")
    path = write_whole(folder / f"{Path(name).stem}-like-{like.stem}-{digest}.npz", packed.getvalue())
    part = "" if dealt.share == 1 else f" ({100 * dealt.share:.0f} % of the counts: it has no more)"
    say(f"samples of {dataset.name} dealt like {like}{part}: {path}")
    say("what suits these counts need not suit your samples: run it again on those when you can")
    taken: dict[str, list[Any]] = {"model": [usual.model], "rounds": [usual.rounds], "batch_size": [usual.batch_size]}
    return {**taken, **common, "dataset": [str(path)], "partition": ["natural"], "label_column": [None], "resize": [""]}


@dataclass(frozen=True)
class _Plan:
    prepared: Prepared
    candidates: Sequence[Any]
    common: dict[str, list[Any]]
    rounds: int
    every: int

    @property
    def axes(self) -> tuple[str, ...]:
        from fedga.study.candidates import AXES

        return ("algorithm", "preset", "seed", *AXES, "validate", "evaluate_every", "diagnose_every")


def _plan(common: dict[str, list[Any]], share: list[Any], limits: Any, program: Program) -> _Plan:
    """The candidates, checked and with their data."""
    from fedga.study.candidates import fitting, fitting_network, make_candidates, recipes
    from fedga.study.prepare import fitting_model
    from fedga.study.tournament import Candidate

    named, presets = common.pop("algorithm", []), common.pop("preset", [])
    if not share[0] or len(share) > 1:
        raise FedGAError("--validate is the share of samples to choose by: give one above 0, such as 0.1")
    algorithms, left_out = fitting(named, limits)
    for preset in presets:
        check_known("preset", preset, PRESETS)
    tried_first = {**common, "algorithm": [algorithms[0]], "preset": presets[:1] or ["strong"]}
    first = build_sweep(tried_first, names_clients=names_clients).runs[:1]
    if first[0].partition == "natural":
        common["partition"] = ["natural"]
    [base], preparation = (found := prepare(first, program, active_chosen="active" in common)).specs, found.preparation
    dataset = preparation.dataset(base)
    network = fitting_model(base.model, dataset.input_shape, dataset.num_classes, norm=base.norm)
    algorithms, unsuited = fitting_network(algorithms, network, dataset)
    left_out |= unsuited
    every = max(1, base.rounds // _POINTS)
    tried = {**common, "validate": share, "evaluate_every": [every], "diagnose_every": [0]}
    settings = recipes(base, dataset, preparation.federation(base).num_clients, network, presets)
    candidates = make_candidates(algorithms, settings, tried)
    runs = [spec for candidate in candidates for spec in candidate.specs]
    prepared = prepare(runs, program, active_chosen="active" in common)
    number = len(candidates[0].specs)
    fitted = [prepared.specs[start : start + number] for start in range(0, len(runs), number)]
    candidates = [Candidate(tuple(specs)) for specs in fitted]
    if left_out:
        say("left out: " + "; ".join(f"{name} {why}" for name, why in left_out.items()))
    return _Plan(prepared, candidates, common, base.rounds, every)


def _show(plan: _Plan, folder: Path, by: str, program: Program, then_run: bool) -> None:
    from fedga.report.choice import candidate_name, decide, draw_tournament, standings_table
    from fedga.report.figures import save
    from fedga.report.page.repeat import run_command
    from fedga.report.writers import terminal, write_table
    from fedga.study.candidates import on_all_samples

    outcome = _play(plan, folder, by)
    verdict = decide(outcome)
    write_table(standings_table(outcome, verdict.pick, by), folder / "tables")
    out.print(terminal(standings_table(outcome, verdict.pick, by, _SHOWN), width=out.width))
    out.print(verdict.words, highlight=False)
    try:
        drawn = save(draw_tournament(outcome, verdict.pick, by), folder / "figures" / "choice")
        say("picture: " + ", ".join(map(str, drawn)))
    except FedGAError as error:
        say(f"no picture: {error}")
    final = on_all_samples(verdict.pick.candidate, plan.common)
    if then_run:
        _train_on_all(final, folder, plan, program)
        return
    _print_command("To train it on all samples and test it:", run_command(final))
    if verdict.other is not None:
        other = verdict.other.candidate
        heading = f"The other one, {candidate_name(other.spec)}:"
        _print_command(heading, run_command(on_all_samples(other, plan.common)))


def _print_command(heading: str, command: str) -> None:
    """Ready to paste: in one line, however narrow the terminal."""
    if command:
        out.print(heading, highlight=False, markup=False)
        out.print(f"  {command}", highlight=False, soft_wrap=True, markup=False)


def _play(plan: _Plan, folder: Path, by: str) -> Any:
    """The tournament, with a bar; Ctrl-C ends the program after the round it is in."""
    from fedga.cli.progress import rounds_bar, stop_request
    from fedga.report.choice import candidate_name
    from fedga.report.words import plural
    from fedga.store.archive import is_archive
    from fedga.store.store import Store
    from fedga.study.sweep import Interrupted, Observer
    from fedga.study.tournament import Rung, Standing, make_rungs, planned, run_tournament

    prepared, number = plan.prepared, len(plan.candidates)
    rungs = make_rungs(number, plan.rounds, plan.every)
    seeds, total = len(plan.candidates[0].specs), planned(number, rungs)
    if is_archive(folder):
        raise FedGAError(f"{str(folder)!r} is an archive of results, for reports only: give another --out to train")

    def decided(rung: Rung, going_on: Sequence[Standing]) -> None:
        best = going_on[0]
        name = candidate_name(best.candidate.spec)
        say(f"after round {rung.round} {len(going_on)} go on; the best is {name} with {best.mean:.3f}")

    with Store(folder) as store, stop_request() as stop:
        prepared.preparation.fingerprints(prepared.specs)
        share = f"{100 * total / (number * plan.rounds):.0f} % of the rounds of a full grid"
        say(f"{number} candidates with {plural(seeds, 'seed')} on {prepared.device}: {share}; results go to {folder}")
        hinted = [
            spec for spec in prepared.specs if spec.standardize
        ] or prepared.specs  # one way to cure columns is tried
        for hint in (*prepared.preparation.holdings(prepared.specs), *prepared.preparation.hints(hinted)):
            say(hint)
        held = [prepared.preparation.federation(spec).held_out for spec in prepared.specs]
        fewest = min(len(places) for places in held if places is not None)
        if fewest < _FEW_HELD_OUT:
            one = f"one of them is {100 / fewest:.1f} points"
            say(f"a seed holds out {fewest} samples, {one}: a larger --validate tells candidates better apart")
        with rounds_bar(total * seeds) as advance:

            def advanced(specs: Sequence[RunSpec], rounds: Sequence[Any]) -> None:
                advance(len(specs))

            observer = Observer(advanced=advanced, noticed=say, should_stop=stop)
            given = (rungs, store, prepared.device, prepared.preparation)
            try:
                return run_tournament(
                    plan.candidates, *given, metric=by, axes=plan.axes, observer=observer, decided=decided
                )
            except Interrupted:
                fail(f"stopped; everything so far is in {folder}, and the same command continues", code=130)


def _train_on_all(runs: Sequence[RunSpec], folder: Path, plan: _Plan, program: Program) -> None:
    """The choice, trained on all samples and scored on the test split."""
    from fedga.cli.summary import print_summary

    prepared = prepare(runs, program, active_chosen=True)
    train(prepared, folder, program, axes=plan.axes)
    print_summary(folder, {spec.run_id for spec in prepared.specs}, out)
    say(f"a page of it: fedga report {folder}")
