"""`fedga algorithms`: what every algorithm costs and reveals, and whether one's own is right."""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Annotated, Any

import typer

from fedga.cli.console import out, say
from fedga.cli.training import own_option
from fedga.common.spreadsheet import csv_text
from fedga.errors import FedGAError, check_known, quoted
from fedga.spec.kinds import Number

FORMATS, SENDS = ("table", "csv", "json"), ("anything", "nothing")
_MOST_CLASSES = 1_000_000
_named = partial(own_option, metavar="NAME", panel=None)
_SMALL_SAMPLE, _FEW_CLASSES = 3 * 128 * 128, 10_000


def algorithms(
    names: Annotated[str | None, typer.Argument(help="Such as fedga,mine; else all built-in.", metavar="LIST")] = None,
    sends: Annotated[str, _named("--sends", "Beside the model: nothing, or anything.", metavar="WHAT")] = SENDS[0],
    secure_aggregation: Annotated[
        bool, typer.Option("--secure-aggregation", help="Only what runs when the server sees sums alone.")
    ] = False,
    model: Annotated[str, typer.Option("--model", help="Network whose size the bytes are counted for.")] = "mlp",
    shape: Annotated[str, typer.Option("--shape", help="Shape of a sample, such as 3x32x32.")] = "1x28x28",
    classes: Annotated[str, typer.Option("--classes", help="Number of classes.", metavar="NUMBER")] = "10",
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    check: Annotated[str | None, _named("--check", "Look for mistakes of this algorithm or selection rule.")] = None,
) -> None:
    """What every algorithm costs and reveals beyond plain model averaging; one by name in full.

    The code of an algorithm of your own is run only where it is named: `fedga algorithms fedavg,mine`. Which ones a
    server can run that may see no more than sums over clients, and which need no message of their own:

        fedga algorithms --secure-aggregation

        fedga algorithms --sends nothing
    """
    check_known("format", format, FORMATS)
    check_known("--sends", sends, SENDS)
    if check is not None:
        _check(check, names)
        return

    from fedga.algorithms import ALGORITHMS, algorithm_class, own_algorithms
    from fedga.report.methods.combinable import combinable_rows, combinable_table
    from fedga.report.methods.costs import algorithms_rows, algorithms_table
    from fedga.report.methods.listing import combinable_listing, listing

    number = int(Number(whole=True, least=2, most=_MOST_CLASSES).parse("--classes", classes) or 0)
    parameters = _parameters(model, shape, number)
    mine, asked = own_algorithms(), None if names is None else [name.strip() for name in names.split(",")]
    left = asked and [name for name in asked if name in {*ALGORITHMS, *mine} or not combinable_rows([name])]
    named = {name: algorithm_class(name) for name in (ALGORITHMS if left is None else left)}
    if asked is None and mine:
        say(f"your own are not run unless you name them: fedga algorithms {','.join(mine)}")

    def fits(row: Mapping[str, Any]) -> bool:
        return not (sends == "nothing" and row.get("sends_extra")) and (row["sums_suffice"] or not secure_aggregation)

    rows = [row for row in algorithms_rows(parameters, number, named) if fits(row)]
    others = [row for row in combinable_rows(asked) if fits(row)] if sends != "nothing" else []
    if not rows and not others:
        say("none of them is as you ask: leave out --sends or --secure-aggregation to see what they need")
    if format == "json":
        print(json.dumps(rows or others, indent=2, ensure_ascii=False))
    elif format == "csv" and (rows or others):
        print(csv_text([(rows or others)[0], *map(_cells, rows or others)]), end="")
    elif format == "table":
        if rows and asked is None:
            out.print(listing(rows, model, parameters, width=out.width))
        elif rows:
            shown = {row["algorithm"]: named[row["algorithm"]] for row in rows}
            out.print(algorithms_table(model, parameters, number, shown, width=out.width))
        if others:
            out.print((combinable_listing if asked is None else combinable_table)(others, width=out.width))


def _cells(row: Mapping[str, Any]) -> list[Any]:
    """A row of the CSV: options as they are typed."""
    options = ":".join(f"{name}={value}" for name, value in row["options"].items())
    return list({**row, "options": options}.values())


def _check(algorithm: str, names: str | None) -> None:
    from fedga.algorithms import ALGORITHMS, make_algorithm, own_algorithms
    from fedga.selection import SELECTIONS, make_selection, own_selections
    from fedga.selection.check import check_selection
    from fedga.servers import SERVERS, make_server, own_servers
    from fedga.spec.settings import parse_algorithm, parse_selection
    from fedga.testing import check_algorithm

    if names is not None:
        raise FedGAError(f"--check {algorithm} checks that one alone: leave out {quoted(names)}")
    algorithms, server = {*ALGORITHMS, *own_algorithms()}, algorithm.removeprefix("server:")
    rules = {*SELECTIONS, *own_selections()} - algorithms
    if server != algorithm or server in {*SERVERS, *own_servers()} - algorithms - rules:
        make_server(server)  # which checks the user's own
        print(f"{server}: returns the next model and all that it keeps, the same when mapped over runs")
        return
    named = algorithm.removeprefix("select:")
    rule, given = parse_selection(named)
    if named != algorithm or rule in rules:
        check_selection(make_selection(rule, **dict(given)), rule)
        print(f"{rule}: selects available clients alone, none twice, the same ones when mapped over runs")
        return
    name, options = parse_algorithm(algorithm)
    for line in check_algorithm(make_algorithm(name, **dict(options)) if options else name):
        print(line)


def _parameters(model: str, shape: str, classes: int) -> Any:
    """`Parameters` of a network; a large one of ours is not made for that, which loads the compiler of torch."""
    import torch

    from fedga.algorithms.parameters import Parameters
    from fedga.models import MODELS
    from fedga.study.prepare import fitting_model

    if not re.fullmatch(r"[1-9]\d{0,5}([x×][1-9]\d{0,5}){0,2}", shape.lower()):
        raise FedGAError(f"--shape {shape!r} is not the shape of a sample: write channels, height, width as 3x32x32")
    input_shape = tuple(int(side) for side in re.findall(r"\d+", shape))
    small = prod(input_shape) <= _SMALL_SAMPLE and classes <= _FEW_CLASSES
    with torch.device("meta") if model in MODELS and not small else nullcontext():
        return Parameters(fitting_model(model, input_shape, classes))
