"""Writes docs/methods/: a page per algorithm, from what it declares and from the runs in results/related-digits.

`make methods` writes all of it; a test compares the pages with the code. The runs are those of
`fedga paper related --scale quick --out DIR`, kept by `fedga archive DIR results/related-digits`.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from fedga.algorithms import ALGORITHMS, Algorithm
from fedga.algorithms.parameters import Parameters
from fedga.drawing.style import algorithm_color, algorithm_rank, display_name
from fedga.paper.report.related import PLAIN, SETTINGS, Comparison, Method, compare_methods, related_headline
from fedga.report.curves import Curve, read_curves
from fedga.report.methods.costs import algorithms_rows, cost_columns, human_bytes
from fedga.report.series import setting_text
from fedga.store.archive import opened
from fedga.store.results import ResultsReader
from fedga.study.prepare import fitting_model

ROOT = Path(__file__).resolve().parents[1]
FOLDER, RUNS = ROOT / "docs" / "methods", ROOT / "results" / "related-digits"
COMMAND = "make methods"
MODEL, SHAPE, CLASSES = "lenet", (3, 32, 32), 10
DRAWN_ALPHA = 0.1
PICTURES = {"related": "differences.png", "related-ranks": "ranks.png"}
COLORS = 160  # of a picture that matplotlib draws
NOTE = "<!-- Written by tools/write_methods.py; see the top of that file. -->"
INK, QUIET, LINE = "#1f2328", "#59636e", "#d9dee3"
WIDTH, HEIGHT, LEFT, TOP, PLOT, TALL, BETWEEN = 620, 232, 46, 44, 240, 146, 52  # of a method's picture


@dataclass(frozen=True, eq=False)
class Runs:
    """The study on digits."""

    found: Comparison
    rounds: int
    seeds: int

    @property
    def about(self) -> str:
        return (
            f"These are the embedded digits (1,797 pictures of 8×8), an MLP, {self.rounds} rounds, {self.seeds} seeds, "
            "and one setting of each method, its default options: a first look, not a verdict. In the paper's setting "
            "FedAvg is still rising when the rounds are over, so that a lead there is one of speed."
        )

    def curves(self, name: str, preset: str) -> tuple[Curve, ...]:
        place = next(of for of in self.found.places if (of.preset, of.alpha) == (preset, DRAWN_ALPHA))
        return self.found.curves.get((Method(name), place), ())


def read_runs() -> Runs:
    with opened(RUNS) as folder:
        specs = {run.run_id: run.spec for run in ResultsReader(folder).runs()}
        curves = read_curves(folder)
    rounds, seeds = max(spec.rounds for spec in specs.values()), len({spec.seed for spec in specs.values()})
    return Runs(compare_methods(curves, specs), rounds, seeds)


def pages() -> dict[str, str]:
    """Name in docs/methods/ and text of every page and of every method's picture."""
    runs, network = read_runs(), Parameters(fitting_model(MODEL, SHAPE, CLASSES))
    names = sorted(ALGORITHMS, key=algorithm_rank)
    rows = {row["algorithm"]: row for row in algorithms_rows(network, CLASSES)}
    pictures = {f"{name}.svg": _picture(name, runs) for name in names if runs.curves(name, "paper")}
    texts = {"index.md": _index([rows[name] for name in names], runs)}
    texts |= {f"{name}.md": _page(name, rows[name], network, runs) for name in names}
    return {name: "\n".join(lines) for name, lines in texts.items()} | pictures


# --- a method's page -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Documented:
    """The docstring of an algorithm's module, in its parts."""

    summary: str
    body: str
    reference: str

    @classmethod
    def of(cls, kind: type[Algorithm]) -> Documented:
        text = _markdown(inspect.getdoc(inspect.getmodule(kind)) or "")
        summary, _, rest = text.partition("\n\n")
        lines, author = rest.splitlines(), kind.citation.partition(" ")[0]
        begins = next((at for at, line in enumerate(lines) if author and line.startswith(author)), len(lines))
        return cls(summary.replace("\n", " "), "\n".join(lines[:begins]).strip(), " ".join(lines[begins:]))


def _markdown(docstring: str) -> str:
    """Code between single quotes, and a norm's bars as one character, which ends no cell of a table."""
    return docstring.replace("``", "`").replace("||", "‖")


def _page(name: str, row: Mapping[str, Any], network: Parameters, runs: Runs) -> Iterator[str]:
    kind = ALGORITHMS[name]
    documented = Documented.of(kind)
    yield f"# {display_name(name)}\n\n{NOTE}\n"
    yield f"**{documented.summary}**\n"
    yield f"`--algorithm {name}`, in `{_file(kind)}`.\n"
    own = inspect.cleandoc(vars(kind).get("__doc__") or "")
    for text in (documented.body, "" if own.startswith(f"{kind.__name__}(") else _markdown(own)):
        if text:
            yield f"{text}\n"
    if documented.reference:
        yield f"> {documented.reference}\n"
    yield "## Options\n"
    options = [(f"`{each.name}`", f"`{setting_text(each.default)}`", _range(kind, each)) for each in fields(kind)]
    yield from _table(("option", "default", "may be"), options) if options else ["It has none.\n"]
    yield "## What it costs and reveals\n"
    yield (
        f"Beside the model, per client and round; bytes for LeNet on CIFAR-10 ({network.total:,} parameters, "
        f"{human_bytes(4 * network.total)} each way).\n"
    )
    costs = {heading: text for heading, [text] in cost_columns([row], network).items() if text and heading != "options"}
    secure = "yes: the server needs sums over clients alone" if row["sums_suffice"] else "no"
    yield from _table(
        ("beyond FedAvg", ""), [*(costs or {"everything": "nothing"}).items(), ("secure aggregation", secure)]
    )
    yield "## Run it\n"
    others = "fedavg" if name == PLAIN else f"fedavg,{name}"
    yield f'```sh check="it trains"\nfedga run --dataset digits --alpha 0.1 --algorithm {others} --seeds 0-2\n```\n'
    yield f'```sh check="it needs the data"\nfedga paper related --algorithms {others}\n```\n'
    yield from _measured(name, runs)


def _file(kind: type[Algorithm]) -> str:
    return str(Path(inspect.getfile(kind)).resolve().relative_to(ROOT))


def _range(kind: type[Algorithm], each: Field[Any]) -> str:
    """The values of an option, in words."""
    declared, literal = each.metadata.get("range"), get_args(get_type_hints(kind)[each.name])
    names = getattr(declared, "names", None) or literal
    if names:
        return ", ".join(f"`{name}`" for name in names)
    if isinstance(each.default, bool):
        return "`true`, `false`"
    if isinstance(each.default, str):
        return "an algorithm" if each.default in ALGORITHMS else "a text"
    return str(declared or "a number")


def _measured(name: str, runs: Runs) -> Iterator[str]:
    if not runs.curves(name, "paper"):
        return
    yield "## On digits\n"
    yield f"{runs.about}\n"
    yield f"![{display_name(name)} and FedAvg over rounds]({name}.svg)\n"
    yield f"*Accuracy over rounds at α = {DRAWN_ALPHA:g}, mean and range over seeds.*\n"
    alphas = sorted({place.alpha for place in runs.found.places if place.alpha is not None})
    yield from _table(
        ("", *(f"α = {alpha:g}" for alpha in alphas)), [_row(name, each, runs, alphas) for each in SETTINGS]
    )
    if name == PLAIN:
        yield "Accuracy after the last round, mean over the seeds. [All methods beside it](index.md).\n"
    else:
        yield (
            "Points ahead of FedAvg after the last round, paired by seed, ± half of the 95 % interval; bold where that "
            "does not contain 0. [All methods](index.md).\n"
        )


def _row(name: str, preset: str, runs: Runs, alphas: Sequence[float]) -> tuple[str, ...]:
    places = {place.alpha: place for place in runs.found.places if place.preset == preset}
    if name == PLAIN:
        return (SETTINGS[preset], *(f"{100 * np.mean(runs.found.plain[places[alpha]]):.1f} %" for alpha in alphas))
    cells = [runs.found.at(Method(name), places[alpha]).cell() for alpha in alphas]
    return (SETTINGS[preset], *(f"**{cell.text}**" if cell.bold else cell.text for cell in cells))


def _picture(name: str, runs: Runs) -> str:
    """Accuracy over rounds beside FedAvg's, mean and range over seeds, one panel per setting."""
    title = f"{display_name(name)} on digits, α = {DRAWN_ALPHA:g}, {runs.seeds} seeds"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">',
        f"<title>{title}: accuracy over rounds</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    names = list(dict.fromkeys((PLAIN, name)))
    x = LEFT
    for one in names:
        label, color = display_name(one), algorithm_color(one) if one != PLAIN else QUIET
        lines.append(f'<path d="M{x} 14h22" stroke="{color}" stroke-width="2.5"/>')
        lines.append(f'<text x="{x + 28}" y="18" font-size="13" fill="{INK}">{label}</text>')
        x += 60 + 8 * len(label)
    for at, preset in enumerate(SETTINGS):
        left = LEFT + at * (PLOT + BETWEEN)
        lines.append(f'<text x="{left}" y="{TOP - 8}" font-size="12" fill="{QUIET}">{SETTINGS[preset]}</text>')
        lines += _axes(left, runs.rounds)
        for one in names:
            lines += _line(runs.curves(one, preset), algorithm_color(one) if one != PLAIN else QUIET, left, runs.rounds)
    return "\n".join([*lines, "</svg>", ""])


def _axes(left: int, rounds: int) -> Iterator[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + TALL * (1 - share)
        yield f'<path d="M{left} {y:g}h{PLOT}" stroke="{LINE}"/>'
        yield f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end" font-size="11" fill="{QUIET}">{share:g}</text>'
    for number in (0, rounds // 2, rounds):
        x = left + PLOT * number / rounds
        text = f"{number}" if number else "round 0"
        yield f'<text x="{x:g}" y="{TOP + TALL + 16}" text-anchor="middle" font-size="11" fill="{QUIET}">{text}</text>'


def _line(curves: Sequence[Curve], color: str, left: int, rounds: int) -> Iterator[str]:
    """The mean of the runs that finished, and their range."""
    finished = [curve for curve in curves if curve.status == "done"]
    if not finished:
        return
    values = np.array([curve.metric("accuracy") for curve in finished])

    def points(heights: np.ndarray) -> list[str]:
        places = zip(finished[0].rounds.tolist(), heights.tolist(), strict=True)
        return [f"{left + PLOT * number / rounds:.0f} {TOP + TALL * (1 - height):.1f}" for number, height in places]

    band = [*points(values.max(0)), *reversed(points(values.min(0)))]
    yield f'<path d="M{"L".join(band)}z" fill="{color}" fill-opacity=".15"/>'
    yield f'<path d="M{"L".join(points(values.mean(0)))}" fill="none" stroke="{color}" stroke-width="2"/>'


# --- the page of all -------------------------------------------------------------------------------------------------


def _index(rows: Sequence[Mapping[str, Any]], runs: Runs) -> Iterator[str]:
    yield f"# Methods\n\n{NOTE}\n"
    yield (
        f"The {len(rows)} algorithms that come with fedga, a page each. Each page is written from the algorithm's own "
        "file. On digits: in how many settings the method is ahead of FedAvg / behind it by more than its 95 % "
        f"interval, of {len(runs.found.places)} ([below](#on-digits)).\n"
    )
    head = ("method", "from", "in a sentence", "sends more than the model", "under secure aggregation", "on digits")
    yield from _table(head, [_entry(row, runs) for row in rows])
    yield (
        "Bytes, passes and what the server learns in one table: `fedga algorithms`. "
        "[Rules of selection](../reference/selection.md) and [server optimisers](../reference/servers.md) combine with "
        "all of them.\n"
    )
    yield f"## On digits\n\n{runs.about} {related_headline(runs.found)}\n"
    yield f"![The difference of every method to FedAvg]({PICTURES['related']})\n"
    if runs.found.ranking is not None:
        yield f"![Mean ranks of the methods]({PICTURES['related-ranks']})\n"
    yield (
        "Differences are paired by seed: both runs have the same partition and first weights. Mean ranks and critical "
        "difference are as in Demšar (Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006). "
        "Settings of one small data set are few for so many methods, and not independent of each other.\n"
    )
    yield "The same again, in minutes; and the study as it is meant, on MNIST, CIFAR-10 and SVHN:\n"
    yield (
        '```sh check="it trains, and needs the data"\nfedga paper related --scale quick --out related-digits\n'
        "fedga paper related --out related\n```\n"
    )
    yield "Two seeds of everything tell where to spend the other three; both commands write into one report:\n"
    yield (
        '```sh check="it trains, and needs the data"\nfedga paper related --seeds 0-1 --out related\n'
        "fedga paper related --seeds 2-4 --algorithms fedavg,fedga,fedacg --out related\n```\n"
    )


def _entry(row: Mapping[str, Any], runs: Runs) -> tuple[str, ...]:
    name = row["algorithm"]
    summary = Documented.of(ALGORITHMS[name]).summary
    sentence = re.sub(r"^[^:`]*: ", "", summary).rstrip(".")
    counts = "{} / {}".format(*runs.found.signs(Method(name))) if name != PLAIN and runs.curves(name, "paper") else "–"
    secure = "yes" if row["sums_suffice"] else "no"
    more = "yes" if row["sends_extra"] else "no"
    return (f"[{display_name(name)}]({name}.md)", row["citation"] or "–", sentence, more, secure, counts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


# --- the pictures that matplotlib draws ------------------------------------------------------------------------------


def drawn_pictures() -> dict[str, bytes]:
    """Both pictures of the study, in few colours: small enough to commit."""
    from PIL import Image

    from fedga.drawing.style import DPI, drawing
    from fedga.paper.report.related_pictures import differences_picture, ranks_picture

    found = read_runs().found
    figures = {"related": differences_picture(found)}
    if found.ranking is not None:
        figures["related-ranks"] = ranks_picture(found.ranking)
    written = {}
    for name, figure in figures.items():
        drawn, small = io.BytesIO(), io.BytesIO()
        with drawing():
            figure.savefig(drawn, format="png", dpi=DPI)
        Image.open(drawn).convert("RGB").quantize(COLORS).save(small, format="png", optimize=True)
        written[PICTURES[name]] = small.getvalue()
    return written


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for old in FOLDER.iterdir():
        if old.name not in {*texts, *PICTURES.values()}:
            old.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for name, content in drawn_pictures().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
