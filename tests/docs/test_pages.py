"""Every code block of the documentation does what its page says; the rules are at the top of ``blocks.py``."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fedga.cli import main
from tests.docs.blocks import ROOT, Block, BlockError, read_blocks
from tests.docs.pages import LONG_PAGES, PAGES, called, follow, works


@pytest.mark.parametrize("page", [page for page in PAGES if page not in LONG_PAGES], ids=called)
def test_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    works(page, tmp_path)


def test_there_are_pages_with_blocks_of_every_kind() -> None:
    blocks = [block for page in PAGES for block in read_blocks(page.read_text(encoding="utf-8"))]
    assert {"python", "sh", "text", "toml", "ini"} <= {block.language for block in blocks}
    assert {"title", "excerpt", "background", "check"} <= {name for block in blocks for name in block.attributes}


def test_the_page_of_commands_has_every_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    page = importlib.import_module("generated").pages()["reference/command-line.md"]
    [sentence] = re.findall("Exit codes: .*", page)
    assert re.findall(r"\d+", sentence) == re.findall(r"\d+", main.__doc__ or "")


# --- the rules themselves: what is wrong on a page is found -----------------------------------------------------------


def write(folder: Path, *blocks: str) -> Path:
    page = folder / "page.md"
    page.write_text(
        "# A page\n\n" + "\n\ntext between\n\n".join(f"```{block}\n```" for block in blocks), encoding="utf-8"
    )
    return page


def test_a_page_that_works(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        'python title="given/count.py"\nimport sys\nprint(sys.argv[1], file=open("seen.txt", "a"))',
        "sh\npython given/count.py one\npip install 'fedga[data]' 'numpy>=1'",
        'python\nimport pathlib\nfrom given import count as _  # the folder is where the reader works\nname = "two"',
        'python\nassert pathlib.Path("seen.txt").read_text().startswith("one")\nassert name == "two"',
        "sh background=\"ready\"\ntrap 'exit 0' INT\ntouch started.txt; echo ready; while true; do sleep 0.1; done",
        "sh\ntest -e started.txt",
        'sh check="no data"\nfedga run --dataset mnist --preset paper  # words\nmake test',
        "toml\nlr = 0.1",
        'json title="x.json"\n{"a": 1}',
        "text\nanything",
        "sh\necho one 12 two; echo three; echo four",
        "text\none 13\ntwo\n...\nfour",
        "python\nprint('said')",
        "text\nsaid",
    )
    ended = follow(page, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("python\n1 / 0", 'page.md", line 4, in <module>'),
        ("sh\nfalse | true", "ended with exit code 1"),
        ("sh\nfedga run --datset digits", "did you mean --dataset"),
        ("sh\npip install 'fedga[nothing]'", "fedga has no extra nothing"),
        ("sh\npip install torch==0.1", "torch==0.1 is wanted"),
        ('sh background="ready"\necho no', "it did not say 'ready':\nno"),
        ('sh background="ready"\ntrap "exit 3" INT; echo ready; sleep 60', "it ended with exit code 3"),
        ('sh check="long"\nfedga run --dataset mnist --rouns 3', "did you mean --rounds"),
        ('sh check="long"\nfedga run --dataset mnist --alpha zero', "--alpha must be a number"),
        ('sh check="long"\nfedga repot runs', "No such command 'repot'"),
        ('sh check="long"\nflwr run app --steam', "No such option '--steam'"),
        ('sh check="long"\nflower-superlink --prot 1', "unrecognized arguments: --prot"),
        ('sh check="long"\nmake nothing', "no target nothing"),
        ('sh check="long"\nls', "ls: command not found"),
        ('python title="x.py"\nprint(1)', "x.py is written, and no later block uses it"),
        ('python title="x.py"\n1 / 0\n```\n```text\nx', "x.py is written, and no later"),
        ('python title="x.py"\n1 / 0\n```\n```toml\nx = 1', "x.py is written, and no later"),
        ('python title="deal.py"\n1 / 0\n```\n```sh\necho ideal', "deal.py is written, and no later"),
        ('python excerpt="README.md"\nno such line', "README.md does not have these lines"),
        ("toml\na =", "Invalid value"),
        ("json\n{'a': 1}", "Expecting property name"),
        ("ini\n[a", "no section headers"),
        ("\nls", "a fence of language ''"),
        ("bash\nls", "a fence of language 'bash'"),
        ('sh exec="no"\nls', "sh has no attribute exec"),
        ("sh no-run\nls", "attributes are written"),
        ("sh\necho one\n```\n```text\ntwo", "does not say\ntwo\nbut\none"),
        ("python\nprint('one two')\n```\n```text\ntwo ... one", "does not say\none"),
        ('text title="examples/nothing.py"\none', "there is no examples/nothing.py"),
    ],
)
def test_what_is_wrong_is_found(block: str, complaint: str, tmp_path: Path) -> None:
    ended = follow(write(tmp_path, block), tmp_path)
    assert ended.returncode != 0
    assert complaint.lower() in (ended.stdout + ended.stderr).lower(), ended.stdout + ended.stderr


def test_blocks_are_found_in_lists_and_comments() -> None:
    in_a_list = "1. do\n\n    ```sh\n    ls\n      -l\n    ```\n\n"
    in_a_comment = "<!-- what there is\n```python\nx = 1\n```\n-->\n\n"
    assert list(read_blocks(in_a_list + in_a_comment + "````text\n```\n````\n")) == [
        Block("sh", "ls\n  -l\n", 4),
        Block("python", "x = 1\n", 10, hidden=True),
        Block("text", "```\n", 15),
    ]
    with pytest.raises(BlockError, match="line 1: a fence that does not end"):
        list(read_blocks("```sh\nls"))
