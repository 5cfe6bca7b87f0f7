"""What a tournament found: the method to use, how sure that is, the table and the picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedga.drawing.canvas import Figure, LineEnd, PanelSize, compose, label_ends, text_width
from fedga.drawing.style import MUTED, SMALL, display_name, drawing, line_style, shade
from fedga.errors import FedGAError
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.summary import number_text, plus_minus
from fedga.report.words import plural, signed
from fedga.spec.catalog import place_name
from fedga.spec.settings import RunSpec
from fedga.study.tournament import Outcome, Standing

# Of Student's distribution, 97.5 %, for 1 to 9 degrees of freedom; beyond, by Fisher's expansion in 1/degrees.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
_NORMAL = 1.959964


@dataclass(frozen=True)
class Lead:
    """By how many points one candidate is ahead of another, seed by seed, and where 95 % of such means would lie."""

    points: float
    error: float  # standard error; NaN with a single seed, as are the limits
    low: float
    high: float

    @classmethod
    def of(cls, one: Standing, other: Standing) -> "Lead":
        differences = 100 * (one.scores - other.scores)
        mean, error = float(differences.mean()), standard_error(differences)
        wide = _quantile(len(differences) - 1) * error
        return cls(mean, error, mean - wide, mean + wide)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0; never with a single seed."""
        return self.low > 0

    def __str__(self) -> str:
        interval = f"95 % interval {signed(self.low, 1)} to {signed(self.high, 1)}"
        return f"{signed(self.points, 1)} points ({interval if np.isfinite(self.low) else 'one seed, no interval'})"


def _quantile(degrees: int) -> float:
    """
    >>> round(_quantile(4), 3), round(_quantile(30), 3)
    (2.776, 2.042)
    """
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1] if degrees > 0 else np.nan
    z = _NORMAL
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))


def standard_error(values: np.ndarray) -> float:
    """Of the mean; NaN for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


@dataclass(frozen=True)
class Verdict:
    """The candidate to use, and why, in a sentence or three."""

    pick: Standing
    words: str
    other: Standing | None = None  # the leader or the best FedAvg, where chance may have put it ahead or behind


def decide(outcome: Outcome) -> Verdict:
    """FedAvg where its best settings are within one standard error of the leader, else the leader.

    The simplest within one standard error of the best, as Breiman et al. (Classification and Regression Trees, 1984)
    choose a tree: the best of many is often the luckiest.
    """
    if not outcome.finalists:
        raise FedGAError("every candidate diverged: give a smaller --lr")
    best, number = outcome.finalists[0], len(outcome.standings)
    reference = next((each for each in outcome.finalists if each.candidate.is_reference), None)
    name, of = candidate_name(best.candidate.spec), f"the best of {plural(number, 'candidate')}"
    if reference is None:
        return Verdict(best, f"FedAvg diverged under all settings. {name} is {of}: use it.")
    plain = candidate_name(reference.candidate.spec)
    if reference.mean == best.mean:
        among = of if reference is best else f"as good as any of {plural(number, 'candidate')}"
        return Verdict(reference, f"Nothing beats FedAvg here: {plain} is {among}. Use FedAvg.")
    lead = Lead.of(best, reference)
    compared = f"{lead}, paired over {plural(len(best.scores), 'seed')}"
    ahead = f"{name} is {of} and leads {plain} by {compared}"
    if not lead.points > lead.error:
        return Verdict(reference, f"Nothing beats FedAvg: {ahead}, within one standard error. Use {plain}.", best)
    if not lead.is_clear:
        words = f"Nothing beats FedAvg for certain: {ahead}, which may be chance. {name} is the best guess."
        return Verdict(best, words, reference)
    flattered = f"Being the best of {number}, it looks a little better than it is."
    return Verdict(best, f"{name} beats FedAvg: it leads {plain} by {compared}. {flattered}")


def candidate_name(spec: RunSpec) -> str:
    """Algorithm, preset and axes in words.

    >>> candidate_name(RunSpec(alpha=1, algorithm="fedntd", preset="strong", select="in-turn", centralize=True))
    'FedNTD, strong, centralised, in turn'
    """
    axes = {"centralised": spec.centralize, "in turn": spec.select == "in-turn", "augmented": bool(spec.augment)}
    words = [display_name(spec.algorithm), spec.preset, *(word for word, there in axes.items() if there)]
    return ", ".join(filter(None, words))


def standings_table(outcome: Outcome, pick: Standing, metric: str, most: int | None = None) -> Table:
    """The candidates, the best first, or the first ``most`` of them; the chosen one in bold."""
    reference = next((each for each in outcome.finalists if each.candidate.is_reference), None)
    rows = []
    for each in outcome.standings[:most]:
        bold, lead = each is pick, None
        if reference is not None and each in outcome.finalists and each is not reference:
            lead = Lead.of(each, reference)
        wide = float(each.scores.std(ddof=1)) if len(each.scores) > 1 else None
        sound = np.isfinite(each.mean)
        score = Cell(plus_minus(each.mean, wide), each.mean, bold, deviation=wide) if sound else Cell("diverged")
        against = Cell(NOTHING) if lead is None else Cell(_span(lead), lead.points, bold)
        name = candidate_name(each.candidate.spec)
        rows.append((Cell(name, name, bold), Cell(str(each.round), each.round, bold), score, against))
    left = len(outcome.standings) - len(rows)
    caption = (
        "Mean ± deviation over seeds, of the model averaged over rounds where there is one. Lead: points over the "
    )
    caption += "best FedAvg, with the 95 % interval of paired differences. Bold: the choice."
    caption += f" And {plural(left, 'candidate')} that stopped before." if left else ""
    headings = ("candidate", "rounds", f"validation {metric.replace('_', ' ')}", "lead over FedAvg")
    return Table("choice", "What the tournament found", headings, tuple(rows), caption)


def _span(lead: Lead) -> str:
    edges = f" ({signed(lead.low, 1)} to {signed(lead.high, 1)})" if np.isfinite(lead.low) else ""
    return f"{signed(lead.points, 1)}{edges}"


def draw_tournament(outcome: Outcome, pick: Standing, metric: str) -> Figure:
    """Every candidate's curve up to where it stopped: finalists in their colours, those that stopped in grey."""
    with drawing():
        finalists = outcome.finalists
        labels = {each: f"{number_text(each.mean)} {candidate_name(each.candidate.spec)}" for each in finalists}
        room = max(text_width(text, SMALL, bold=True) for text in labels.values()) + 0.35
        spec = pick.candidate.spec
        title = f"{place_name(spec.dataset, spec.alpha)}: {candidate_name(spec)}"
        figure, [axes] = compose(1, 1, PanelSize(5.6, 3.9, right=room, top=0.3), title=title, caption=_caption(outcome))
        for each in outcome.standings:
            if each not in finalists and len(each.rounds):
                axes.plot(each.rounds, each.curve, color=shade(MUTED, 0.55), linewidth=0.7, zorder=1.5)
                axes.plot(each.rounds[-1:], each.curve[-1:], "o", color=MUTED, markersize=2.4, zorder=1.6)
        ends = []
        for number, each in enumerate(reversed(finalists)):
            variant = [one.candidate.spec.algorithm_name for one in finalists[: finalists.index(each)]]
            algorithm = each.candidate.spec.algorithm
            style = line_style(algorithm, variant=variant.count(each.candidate.spec.algorithm_name))
            width = 2.6 if each is pick else style.width
            known = np.isfinite(each.curve)
            at, values = each.rounds[known], each.curve[known]
            marked: dict[str, Any] = {"markevery": (number, max(1, len(at) // 7)), "zorder": 3}
            axes.plot(at, values, **{**style.keywords(), "linewidth": width, **marked})
            ends.append(LineEnd(at[-1], values[-1], labels[each], shade(style.color, -0.25)))
        last = outcome.rungs[-1].round
        low, high = _limits(outcome)
        axes.set(xlim=(0, last), ylim=(low, high), xlabel="round", ylabel=f"validation {metric.replace('_', ' ')}")
        for rung in outcome.rungs[:-1]:
            axes.axvline(rung.round, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
            axes.annotate(
                f"{rung.keep}",
                (rung.round, 1),
                (0, 3),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                size=SMALL,
                color=MUTED,
            )
        label_ends(axes, ends)
    return figure


def _caption(outcome: Outcome) -> str:
    seeds = len(outcome.standings[0].scores)
    text = f"{plural(len(outcome.standings), 'candidate')}, mean over {plural(seeds, 'seed')}."
    if len(outcome.rungs) > 1:
        text += " Dashed: where the worse ones stop; above, how many go on. Grey: those that stopped."
        text += f" Trained: {100 * outcome.share:.0f} % of the rounds of a full grid."
    return text


def _limits(outcome: Outcome) -> tuple[float, float]:
    """From the worst that a candidate stopped with to the best."""
    ends: Sequence[float] = [each.mean for each in outcome.standings if np.isfinite(each.mean)]
    curves = [each.curve[np.isfinite(each.curve)] for each in outcome.finalists]
    highest = max([*ends, *(float(curve.max()) for curve in curves if len(curve))])
    low = float(np.quantile(ends, 0.1))
    pad = max(0.05 * (highest - low), 0.01)
    return max(0.0, low - pad), min(1.0, highest + pad)
