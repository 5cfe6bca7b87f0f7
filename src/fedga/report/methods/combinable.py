"""What goes with any algorithm: rules of selection, server optimisers, partitions, and settings of local training."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.text import Text

from fedga import plugins
from fedga.algorithms.base import overrides
from fedga.algorithms.limits import more_than_sums
from fedga.data.partitions import PARTITIONS, find_partition
from fedga.report.series import setting_text
from fedga.report.terminal import Column, TitledTable, make_table
from fedga.selection import SELECTIONS, Selection, selection_class
from fedga.servers import SERVERS, make_server
from fedga.spec.grid import DEFAULTS
from fedga.spec.settings import SETTINGS

_HEADINGS = ("what it does", "the server learns", "the server needs", "options")
_KINDS: Mapping[str, tuple[str, Mapping[str, type], Callable[[str], Any]]] = {
    "select": ("selections", SELECTIONS, selection_class),
    "server": ("servers", SERVERS, lambda name: type(make_server(name))),
    "partition": ("partitions", PARTITIONS, lambda name: find_partition(name)[0]),
}


def combinable_rows(names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """A row for each, or for those named; code of the user's own is run where it is named, and not otherwise."""
    rows: list[dict[str, Any]] = []
    empty: dict[str, Any] = dict.fromkeys(_HEADINGS, "") | {"options": {}, "source": "", "sums_suffice": True}
    for flag, (kind, ours, load) in _KINDS.items():
        for name, part in (dict.fromkeys(ours) | plugins.parts(kind, ours)).items():
            if names is None or not {name, f"{flag}:{name}"}.isdisjoint(names):
                row = {"setting": f"--{flag} {name}"} | empty | (_row(flag, load(name)) if names or not part else {})
                rows.append(row | {"source": "\n".join(filter(None, [row["source"], part.origin if part else ""]))})
    for name in ("augment", "centralize", "availability", "stragglers"):
        if name in (names or SETTINGS):
            default = "none" if SETTINGS[name].default == "" else SETTINGS[name].default
            row = {"setting": f"--{name}", "what it does": SETTINGS[name].help, "options": {"default": default}}
            rows.append(empty | row)
    return rows


def _row(flag: str, found: Any) -> dict[str, Any]:
    text = (inspect.getdoc(inspect.getmodule(found)) or "").replace("`", "")
    row: dict[str, Any] = {"what it does": " ".join(re.split(r"\.(?=\s+[A-Z]|\s*$)", text)[0].split())}
    options = {each.name: each.default for each in fields(found)} if is_dataclass(found) else {}
    if flag == "server":
        options["--server-rate"] = found.default_rate
    elif flag == "partition":
        options |= {"--alpha": DEFAULTS["alpha"][0]} if found.needs_alpha else {}
    else:
        needs = {"class counts": found.needs_class_counts, "single updates": overrides(found(), "inspect")}
        needs["clients' losses"] = found.needs_losses
        undeclared = {"every client's class counts": needs["class counts"], "single updates": needs["single updates"]}
        undeclared["every client's loss on its own data"] = needs["clients' losses"]
        learned = "; ".join(words for words, needed in undeclared.items() if needed)
        row["the server learns"] = learned if found.reveals == Selection.reveals else found.reveals
        row["the server needs"] = "; ".join(name for name, needed in needs.items() if needed)
        row["sums_suffice"] = not more_than_sums(found())
    return row | {"options": options, "source": getattr(found, "citation", "")}


def combinable_table(rows: Collection[Mapping[str, Any]], *, width: int | None = None) -> TitledTable:
    """The rows for the terminal; a dash is nothing."""
    texts = (" ".join(f"{name}={setting_text(of)}" for name, of in row["options"].items()) for row in rows)
    cells = [{**row, "options": text} for row, text in zip(rows, texts, strict=True)]
    columns = [Column("setting", [Text(f"{row['setting']}\n{row['source']}".strip()) for row in rows])]
    columns += [Column(name, [Text(row[name] or "–") for row in cells]) for name in _HEADINGS]
    return make_table(columns, title="What goes with any algorithm", width=width, leading=1)
