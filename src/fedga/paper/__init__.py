"""The paper's experiments: runs, sections of a report, printed numbers. Nobody outside imports a module of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedga.paper.runs import EXPERIMENTS as EXPERIMENTS
from fedga.paper.runs import LEARNING_RATES as LEARNING_RATES
from fedga.paper.runs import SCALES as SCALES
from fedga.paper.runs import Experiment as Experiment
from fedga.paper.runs import Scope as Scope
from fedga.paper.runs import all_runs as all_runs
from fedga.paper.runs import experiments_in as experiments_in
from fedga.paper.runs import remember as remember

if TYPE_CHECKING:
    from fedga.paper.binary import train_binary as train_binary
    from fedga.paper.report.pictures import tuning_picture as tuning_picture
    from fedga.paper.report.scores import MOMENTS as MOMENTS
    from fedga.paper.report.sections import paper_commands as paper_commands
    from fedga.paper.report.sections import sections_of as sections_of
    from fedga.paper.report.tuning import chosen_rates as chosen_rates
    from fedga.paper.report.tuning import tuning_headline as tuning_headline
    from fedga.paper.report.tuning import tuning_table as tuning_table

# Loaded when first used: a list of the experiments and a refused flag need neither numpy nor torch.
_HOMES = {
    "binary": ("train_binary",),
    "report.pictures": ("tuning_picture",),
    "report.scores": ("MOMENTS",),
    "report.sections": ("paper_commands", "sections_of"),
    "report.tuning": ("chosen_rates", "tuning_headline", "tuning_table"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedga.paper' has no attribute {name!r}")
    return getattr(import_module(f"fedga.paper.{_HOME_OF[name]}"), name)
