"""The results in words: what was run, which algorithm came out best by how much, and which runs went wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedga.drawing.style import algorithm_rank, base_name, display_name
from fedga.report.curves import Curve
from fedga.report.page.study import Cohort, Member, Place, Study
from fedga.report.summary import number_text
from fedga.report.tables import values_text
from fedga.report.words import listed
from fedga.store.records import Run

MODELS = {"accuracy": "", "averaged_accuracy": "The model averaged over rounds: "}
_SAME = "the same"
_BASELINE = "fedavg"


@dataclass(frozen=True)
class Item:
    """A sentence, and what it is about."""

    about: str
    text: str


@dataclass(frozen=True)
class Story:
    """What a reader who reads nothing else should know."""

    what: str
    verdict: str
    findings: tuple[Item, ...]
    more: tuple[Item, ...]  # findings on single settings beside the presets
    troubles: tuple[Item, ...]


@dataclass(frozen=True)
class Verdict:
    """The best of a cohort by one metric, and how it stands to FedAvg (to the next one, where FedAvg is the best)."""

    best: tuple[Member, ...]  # several where they are printed alike
    value: float
    deviation: float | None
    other: Member | None
    points: float
    ahead: int
    pairs: int
    contestants: int  # with a value; of a single one it can only be said what it reaches

    @property
    def names(self) -> str:
        return listed([member.name for member in self.best])


def tell(study: Study) -> Story:
    cohorts = [cohort for place in study.places for cohort in place.cohorts]
    verdicts = [verdict for cohort in cohorts if (verdict := decide(cohort, "accuracy")) is not None]
    main, more = findings(study)
    return Story(
        what_was_run(study.runs, study),
        _count_wins(verdicts),
        tuple(item for found in main if (item := _item(found))),
        tuple(item for found in more if (item := _item(found))),
        tuple(_troubles(study)),
    )


def what_was_run(runs: Sequence[Run], study: Study) -> str:
    """Data sets, α, algorithms, presets, seeds and rounds in one or two sentences."""
    specs = [run.spec for run in runs]
    names = sorted({spec.algorithm for spec in specs}, key=algorithm_rank)
    alphas = sorted({spec.alpha for spec in specs if spec.alpha is not None})
    presets = sorted({spec.preset for spec in specs if spec.preset})
    text = f"{plural(len(runs), 'run')}: {listed([display_name(name) for name in names])} on "
    text += listed(list(dict.fromkeys(place.dataset_label for place in study.places)))
    text += f" at α = {listed([f'{alpha:g}' for alpha in alphas])}" if alphas else ""
    text += f", {'preset' if len(presets) == 1 else 'presets'} {listed(presets)}" if presets else ""
    seeds = sorted({spec.seed for spec in specs})
    text += f", {'seed' if len(seeds) == 1 else 'seeds'} {listed(values_text(seeds).replace('-', ' to ').split(','))}"
    text += f". {'It' if len(runs) == 1 else 'Each'} trains for {_span([spec.rounds for spec in specs], 'round')}"
    clients = [spec.clients for spec in specs if spec.clients is not None]
    active = _span([spec.active for spec in specs], "client")
    return text + (f", with {active} of {_span(clients)} active in each." if clients else f", {active} active in each.")


def _span(values: Iterable[int], noun: str = "") -> str:
    known = sorted(set(values))
    text = f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
    return text if not noun else f"{text} {noun}{'s' * (known[-1] != 1)}"


def judge(cohort: Cohort, metric: str) -> Verdict | None:
    """Who is best of its contestants by the mean over seeds; None where nothing was measured."""
    known = sorted(
        (member for member in cohort.contestants if member.row[metric] is not None),
        key=lambda member: member.row[metric],
        reverse=True,
    )
    if not known:
        return None
    first = known[0]
    shown = number_text(first.row[metric])
    best = [member for member in cohort.members if member in known and number_text(member.row[metric]) == shown]
    baseline = [member for member in known if is_baseline(member)]
    others = [member for member in baseline or known if member not in best] or [
        member for member in known if member not in best
    ]
    other = others[0] if others else None
    points, ahead, pairs = math.nan, 0, 0
    if other is not None:
        points = 100 * (first.row[metric] - other.row[metric])
        ours, theirs = first.by_seed(metric), other.by_seed(metric)
        shared = ours.keys() & theirs.keys()
        ahead, pairs = sum(ours[seed] > theirs[seed] for seed in shared), len(shared)
    deviation = first.row[f"{metric}_deviation"]
    return Verdict(tuple(best), first.row[metric], deviation, other, points, ahead, pairs, len(known))


def decide(cohort: Cohort, metric: str) -> Verdict | None:
    """The verdict on a comparison that is over; None before the end of training, and where only one has a value."""
    verdict = judge(cohort, metric) if cohort.finished else None
    return verdict if verdict is not None and verdict.contestants > 1 else None


def _count_wins(verdicts: Sequence[Verdict]) -> str:
    """How often each algorithm is the best, over all comparisons."""
    if len(verdicts) < 3:
        return ""
    wins = Counter(found.best[0].name for found in verdicts if len(found.best) == 1)
    ties = sum(len(found.best) > 1 for found in verdicts)
    parts = [f"{name} in {number}" for name, number in wins.most_common()]
    parts += [f"{ties} with no single best" if parts else f"no single best in {ties}"] if ties else []
    comparisons = f"{plural(len(verdicts), 'comparison')} of algorithms under equal settings"
    return f"Of {comparisons}, by test accuracy after the last round, the best was {listed(parts)}."


Found = list[tuple[Place, Cohort]]  # the same setting on one data set, at all its α


def findings(study: Study) -> tuple[list[Found], list[Found]]:
    """What is compared: presets as they are and settings at several α, then all others.

    Cohorts of a single algorithm compare nothing and are left to the tables, unless there are no others.
    """
    every = [(place, cohort) for place in study.places for cohort in place.cohorts]
    compared = [(place, cohort) for place, cohort in every if len(cohort.members) > 1] or every
    together: dict[tuple[str, str], Found] = {}
    for place, cohort in compared:
        together.setdefault((place.dataset, cohort.name), []).append((place, cohort))
    main = [found for found in together.values() if len(found) > 1 or not found[0][1].own]
    more = [found for found in together.values() if found not in main]
    return (main, more) if main else (more, [])


def _item(found: Found) -> Item | None:
    place, cohort = found[0]
    told: dict[str, str] = {}  # who is best -> by how much
    sentences = []
    ended = ended_of(found)
    for metric, lead in MODELS.items():
        if verdicts := [(place, verdict) for place, cohort in ended if (verdict := judge(cohort, metric)) is not None]:
            who, how_much = _sentence(verdicts[0][1]) if len(found) == 1 else _over_alpha(verdicts, len(found))
            sentences.append(f"{lead}{_SAME if len(found) > 1 and who in told else who}{how_much}.")
            told[who] = how_much
    where = place.title if len(found) == 1 else place.dataset_label
    about = f"{where}, {cohort.name}" if cohort.name else where
    if not sentences:
        return None
    absent = [f"{words[0].upper()}{words[1:]}." for words in absent_words(found)]
    return Item(about, " ".join([_so_far(ended) + sentences[0], *sentences[1:], *absent]))


def ended_of(found: Found) -> Found:
    """Where somebody trained to the end; all places while that is so nowhere."""
    return [(place, cohort) for place, cohort in found if cohort.finished] or found


def _so_far(found: Found) -> str:
    """What stands before a comparison that is not over; nothing before others."""
    if any(cohort.finished for _, cohort in found):
        return ""
    rounds = {member.row["round"] for _, cohort in found for member in cohort.contestants}
    return f"So far, after {_span(rounds, 'round')}: "


def absentees(found: Found) -> list[tuple[Place, Cohort, Member]]:
    """Who is in no comparison: all of the places that did not end, and at the others who is no contestant."""
    ended = ended_of(found)
    return [
        (place, cohort, member)
        for place, cohort in found
        for member in cohort.members
        if (place, cohort) not in ended or member not in cohort.contestants
    ]


def absent_words(found: Found) -> list[str]:
    """Who was left out, and why; with its α where it was left out at some of them only."""
    reasons: dict[str, dict[str, list[str]]] = {}  # why -> who -> at which α
    for place, _, member in absentees(found):
        reasons.setdefault(member.why_not, {}).setdefault(member.name, []).append(_alpha(place))
    said = []
    for why, who in reasons.items():
        names = [
            name if len(alphas) == len(found) else f"{name} at α = {listed(alphas)}" for name, alphas in who.items()
        ]
        said.append(f"{why}, left out: {('; ' if len(found) > 1 else ', ').join(names)}")
    return said


def _alpha(place: Place) -> str:
    return "none" if place.alpha is None else place.alpha_label


def _over_alpha(verdicts: Sequence[tuple[Place, Verdict]], places: int) -> tuple[str, str]:
    """Who is best at which α, and by how much, in words; where nobody is compared, what is reached."""
    contested = [(place, verdict) for place, verdict in verdicts if verdict.contestants > 1]
    if not contested:
        return _reached(verdicts)
    verdicts = contested
    won: dict[str, list[str]] = {}
    single = {verdict.names: _is_best(verdict) for _, verdict in verdicts}
    for place, verdict in verdicts:
        won.setdefault(verdict.names, []).append(_alpha(place))
    if len(won) == 1 and len(verdicts) == places:
        [names] = won
        return f"{names} {single[names]} at every α", _margins([verdict for _, verdict in verdicts], ", ")
    text = "; ".join(f"{names} {single[names]} at α = {listed(alphas)}" for names, alphas in won.items())
    return text, _margins([verdict for _, verdict in verdicts], "; the best is " if len(won) > 1 else ", ")


def _reached(verdicts: Sequence[tuple[Place, Verdict]]) -> tuple[str, str]:
    """What algorithms reach that stand alone: of those nobody is best."""
    found: dict[str, list[tuple[str, float]]] = {}
    for place, verdict in verdicts:
        found.setdefault(verdict.names, []).append((_alpha(place), verdict.value))
    parts = [
        f"{names} reaches {listed([number_text(value) for _, value in reached])} "
        f"at α = {listed([alpha for alpha, _ in reached])}"
        for names, reached in found.items()
    ]
    return "; ".join(parts), ""


def _is_best(verdict: Verdict) -> str:
    return "is best" if len(verdict.best) == 1 else "are level"


def _margins(verdicts: Sequence[Verdict], lead: str) -> str:
    """How far the best is above FedAvg, over all α at which that is another algorithm."""
    points = sorted(found.points for found in verdicts if found.other and is_baseline(found.other))
    if not points:
        return ""
    span = f"{points[0]:.1f}" if f"{points[0]:.1f}" == f"{points[-1]:.1f}" else f"{points[0]:.1f} to {points[-1]:.1f}"
    return f"{lead}{span} points above {display_name(_BASELINE)}"


def is_baseline(member: Member) -> bool:
    return base_name(member.series.algorithm) == _BASELINE


def _sentence(verdict: Verdict) -> tuple[str, str]:
    """Who is best, and by how much, in words."""
    value = plus_minus(verdict.value, verdict.deviation)
    if verdict.other is None:
        return verdict.names, f" {'reaches' if len(verdict.best) == 1 else 'are level at'} {value}"
    text = f" {'is best with' if len(verdict.best) == 1 else 'are best, level at'} {value}, "
    text += f"{verdict.points:.1f} points above {verdict.other.name}"
    if verdict.pairs > 1:
        text += f" and ahead of it in {verdict.ahead} of {verdict.pairs} seeds"
    return verdict.names, text


def _troubles(study: Study) -> list[Item]:
    """Runs that diverged, are unfinished or never learned anything, under what they are."""
    kinds: dict[str, list[str]] = {"diverged": [], "unfinished": [], "at chance": []}
    totals = Counter[str]()
    for place in study.places:
        classes = study.classes(place.dataset)
        for cohort, member in place.members:
            where = f"{cohort.label(member)} on {place.title}"
            runs = len(member.series.curves)
            stuck = sum(at_chance(curve, classes) for curve in member.series.sound if curve.status == "done")
            for kind, number in zip(kinds, (member.row["diverged"], member.row["unfinished"], stuck), strict=True):
                if number:
                    totals[kind] += number
                    kinds[kind].append(f"{number} of {runs} of {where}")
    said = {
        "diverged": "diverged: they count in no mean, and end in a cross in the curves",
        "unfinished": "unfinished: one counts in the tables only where no other seed of its series got further, "
        "and in no comparison with finished ones",
        "at chance": "never left chance: they count in the means as they are",
    }
    return [
        Item(f"{plural(totals[kind], 'run')} {said[kind]}.", f"{'; '.join(kinds[kind])}.")
        for kind in kinds
        if kinds[kind]
    ]


def at_chance(curve: Curve, classes: int | None) -> bool:
    """Whether no evaluation of the run is above what guessing gives, by balanced accuracy and with little slack."""
    if not classes:
        return False
    chance = 1 / classes
    measured = curve.metric("balanced_accuracy")[curve.rounds >= 1]
    measured = measured[np.isfinite(measured)]
    return bool(len(measured)) and float(measured.max()) <= min(1.5 * chance, chance + 0.05 * (1 - chance))


def plus_minus(value: float, deviation: float | None) -> str:
    """With blanks at which no line is broken."""
    return number_text(value) + (f"\u00a0±\u00a0{number_text(deviation)}" if deviation is not None else "")


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
