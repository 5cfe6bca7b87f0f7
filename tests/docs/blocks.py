"""Does what a Markdown page says, fence by fence, as its reader would: `python tests/docs/blocks.py PAGE`.

A page has an empty folder of its own. What its blocks may be:

    ```python                       run, all of a page in one namespace
    ```python title="split.py"      written to that file, which a later block uses that is run or written itself;
                                    likewise any other language
    ```python excerpt="src/x.py"    found word for word in that file of the repository, indentation aside
    ```sh                           run by `bash -euo pipefail`; `pip install` checks that it is installed
    ```sh background="words"        started, and the page goes on once it says the words; ended by Ctrl-C after the last
                                    block, or before the same command is given again
    ```sh check="why"               cannot run here, for the reason given: bash runs it with the programs of `check.py`,
                                    which read their arguments as the real ones do, and refuse what those would refuse
    ```toml, ```json, ```ini        parsed
    ```text                         right below a block that is run: what that one says, numbers aside, and `...` for
                                    what is left out; elsewhere just text
    ```text when="why"              what it says when something happens that does not happen here: not compared
    ```text title="examples/x.py"   likewise what that example says: `tests/test_examples.py` looks

Anything else, also a fence without a language, is an error. Blocks inside an HTML comment are run like all others: they
stand for what the reader has already, a training loop of his own for instance.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ONLY_CHECKED = bool(os.environ.get("FEDGA_ONLY_CHECKED"))  # our programs and Flower's only read their arguments
PAGE_S = 1500  # below the time limit of a test: a page that hangs ends what it has started
PATIENCE_S = 900.0
BASH = shutil.which("bash") or "/bin/bash"
PARSERS = {"toml": tomllib.loads, "json": json.loads, "ini": configparser.ConfigParser(interpolation=None).read_string}
ATTRIBUTES: Mapping[str, set[str]] = {
    "python": {"title", "excerpt"},
    "sh": {"title", "background", "check"},
    "text": {"title", "when"},
    **{language: {"title"} for language in PARSERS},
}

# What on a page is meant for other machines than this one, and what it is here. PORT is a free one.
HERE: Mapping[str, Mapping[str, str]] = {
    # Sixteen rounds take four minutes; each further one repeats what the first did.
    "docs/flower-tutorial.md": {"localhost": "localhost:PORT", "--rounds 8": "--rounds 1"},
    "docs/how-to/own-data.md": {"--seeds 0-4": "--seeds 0-1"},  # five of them are for the numbers on the page
    "docs/real-machines.md": {
        "/srv/": "srv/",
        "fl.example.org:9092": "localhost:PORT",
        "fl.example.org": "localhost:PORT",
    },
}

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^\s`]*)(?P<attributes>[^`]*)$")
_ATTRIBUTE = re.compile(r'\s+(\w+)="([^"]*)"')


class BlockError(Exception):
    """A block that is not as the rules above say, or that does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One fence of a page; ``line`` is that of its first line of code."""

    language: str
    code: str
    line: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.language not in ATTRIBUTES:
            known = ", ".join(ATTRIBUTES)
            raise BlockError(f"line {self.line - 1}: a fence of language {self.language!r}, not {known}")
        if unknown := set(self.attributes) - ATTRIBUTES[self.language]:
            raise BlockError(f"line {self.line - 1}: {self.language} has no attribute {', '.join(unknown)}")

    @property
    def is_used(self) -> bool:
        """Whether it is run, or written to a file that a program reads."""
        if self.language == "text" or "excerpt" in self.attributes:
            return False
        return self.language in ("python", "sh") or "title" in self.attributes


def read_blocks(text: str) -> Iterator[Block]:
    """The fences of a page, wherever they stand: in lists, in notes, in comments."""
    lines = text.splitlines()
    hidden, at = False, 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            hidden = (hidden or "<!--" in lines[at]) and "-->" not in lines[at]
            at += 1
            continue
        indent, ticks = len(fence["indent"]), fence["ticks"]
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == ticks), None)
        if end is None:
            raise BlockError(f"line {at + 1}: a fence that does not end")
        if _ATTRIBUTE.sub("", fence["attributes"]).strip():
            raise BlockError(f'line {at + 1}: attributes are written name="value", not {fence["attributes"].strip()}')
        code = "".join(line[indent:] + "\n" for line in lines[at + 1 : end])
        yield Block(fence["language"], code, at + 2, dict(_ATTRIBUTE.findall(fence["attributes"])), hidden)
        at = end + 1


@dataclass
class Terminal:
    """A command that goes on while the page does."""

    process: subprocess.Popen[bytes]
    log: Path

    def hears(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.log.read_text(encoding="utf-8"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BlockError(f"it did not say {words!r}:\n{self.log.read_text(encoding='utf-8')}")
            time.sleep(0.1)

    def ends(self) -> None:
        """Ctrl-C, unless it has ended by itself; either way it ended well."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        said = self.log.read_text(encoding="utf-8")
        print(said, flush=True)
        if code not in (0, 130, -signal.SIGINT):
            raise BlockError(f"it ended with exit code {code}:\n{said}")


class Reader:
    """Does in ``folder`` what a page says."""

    def __init__(self, page: Path, folder: Path, programs: Path) -> None:
        self.page, self.folder, self.programs = page, folder, programs
        self.terminals: dict[str, Terminal] = {}
        self.main = types.ModuleType("__main__")
        self.said: str | None = None  # by the block before, if that was run
        for name in ("fedga", "flower-superlink", "flower-supernode", "flwr", "make", "pip"):
            self._program(self.programs / "checked" / name)
        self._program(self.programs / "pip")

    @staticmethod
    def _program(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("check.py")} {path.name} "$@"\n')
        path.chmod(0o755)

    def read(self) -> None:
        blocks = list(read_blocks(self.page.read_text(encoding="utf-8")))
        here = substitutions(self.page)
        try:
            for place, block in enumerate(blocks):
                code, start = block.code, time.monotonic()
                for there, instead in here.items():
                    code = code.replace(there, instead)
                self.said = self.do(block, code)
                print(f"{self.page}:{block.line}: {block.language}, {time.monotonic() - start:.1f} s", flush=True)
                check_used(block, blocks[place + 1 :])
            for terminal in self.terminals.values():
                terminal.ends()
        finally:
            for terminal in self.terminals.values():
                if terminal.process.poll() is None:
                    os.killpg(terminal.process.pid, signal.SIGKILL)

    def do(self, block: Block, code: str) -> str | None:
        """What it says, if it is run."""
        parse = PARSERS.get(block.language)
        if parse is not None:
            parse(code)
        title = block.attributes.get("title")
        if block.language == "text":
            if title and not (ROOT / title).is_file():
                raise BlockError(f"line {block.line}: there is no {title} that could say this")
            if self.said is not None and not block.attributes:
                check_said(replace(block, code=code), self.said)
        elif title:
            (self.folder / title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / title).write_text(code, encoding="utf-8")
        elif excerpt := block.attributes.get("excerpt"):
            if flat(code) not in flat((ROOT / excerpt).read_text(encoding="utf-8")):
                raise BlockError(f"line {block.line}: {excerpt} does not have these lines")
        elif block.language == "python":
            return self.do_in_python(block, code)
        elif block.language == "sh":
            return self.do_in_shell(block, code)
        return None

    def do_in_python(self, block: Block, code: str) -> str:
        sys.modules["__main__"] = self.main
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                exec(compile("\n" * (block.line - 1) + code, self.page, "exec"), self.main.__dict__)
        finally:
            print(said.getvalue(), flush=True)
        return said.getvalue()

    def do_in_shell(self, block: Block, code: str) -> str | None:
        if ONLY_CHECKED and block.hidden:  # it brings files that a program made
            return None
        if before := self.terminals.pop(code, None):
            before.ends()
        command = [BASH, "-euo", "pipefail", "-c", code]
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment("check" in block.attributes)}
        words = block.attributes.get("background")
        if words and not ONLY_CHECKED:
            log = self.programs / f"{block.line}.txt"
            with log.open("wb") as file:
                process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, **options)
            self.terminals[code] = Terminal(process, log)
            self.terminals[code].hears(words)
            return None
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        print(ended.stdout, flush=True)
        if ended.returncode:
            raise BlockError(f"line {block.line}: these commands ended with exit code {ended.returncode}:\n{code}")
        return None if ONLY_CHECKED or "check" in block.attributes else ended.stdout

    def environment(self, checked: bool) -> dict[str, str]:
        programs = f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        path = f"{self.programs}/checked:{programs}" if ONLY_CHECKED else programs
        path = f"{self.programs}/checked" if checked else path
        own = {"PATH": path, "FEDGA_CACHE": str(self.programs / "cache"), "COLUMNS": "120"}
        own |= {"FLWR_HOME": str(self.programs / "flwr"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        return {name: value for name, value in os.environ.items() if name != "FEDGA_DATA"} | own


def flat(text: str) -> str:
    return "".join(line.strip() + "\n" for line in text.splitlines())


def check_said(block: Block, said: str) -> None:
    """The page shows what the program says today: words and order, not numbers, which differ between machines."""
    rest = bare(said)
    for part in filter(None, map(bare, block.code.split("..."))):
        before, found, rest = rest.partition(part)
        if not found:
            raise BlockError(f"line {block.line}: the program does not say\n{part}\nbut\n{before}")


def bare(text: str) -> str:
    """Without numbers, fingerprints, bars, rules and the width of spaces.

    >>> bare("fedga   0.91 −12 ██▌ lost")
    'fedga # # lost'
    """
    text = re.sub(r"SHA256:[\w/+]+…?", "", re.sub(r"[▀-▟─]+", "", text))
    return " ".join(re.sub(r"[−+-]?\d[\d.,]*", "#", text).split())


def check_used(block: Block, later: list[Block]) -> None:
    """A program on a page that nothing runs has not been tested."""
    title = block.attributes.get("title")
    if not title or block.language not in ("python", "sh"):
        return
    name = re.compile(rf"\b{re.escape(Path(title).stem)}\b")
    if not any(name.search(other.code) for other in later if other.is_used):
        raise BlockError(f"line {block.line}: {title} is written, and no later block uses it")


def substitutions(page: Path) -> dict[str, str]:
    """What stands on this page for something else, with a port that is free."""
    text = page.read_text(encoding="utf-8")
    here = HERE.get(str(page).removeprefix(f"{ROOT}/"), {})
    for there in here:
        if there not in text:
            raise BlockError(f"{there!r} is no longer on the page: take it out of HERE")
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    return {there: instead.replace("PORT", port) for there, instead in here.items()}


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"the page takes more than {PAGE_S} s")


def main(page: str, folder: str | None = None) -> None:
    where = Path(folder or tempfile.mkdtemp(prefix="page-"))
    resolved = Path(page).resolve()
    os.chdir(where)
    sys.path[0] = ""  # the reader's folder, not that of this file
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would ours
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(PAGE_S)
    try:
        with tempfile.TemporaryDirectory(prefix="programs-") as programs:
            Reader(resolved, where, Path(programs)).read()
    except BlockError as trouble:
        sys.exit(f"{page}: {trouble}")


if __name__ == "__main__":
    main(*sys.argv[1:])
