"""What mkdocs does beyond its settings: fences without the tests' attributes, links out of docs/, generated pages."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_FENCE_OF_TESTS = re.compile(r'^( *```\w+)(?: (?:background|check|excerpt|when)="[^"]*")+$', re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that the program writes about itself, and what pages link to in the rest of the repository."""
    sys.path.insert(0, str(Path(__file__).parent))
    import generated

    for name, text in generated.pages().items():
        files.append(File.generated(config, name, content=text))
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in _linked(page) if page.exists() else ():
            if target.is_file() and ROOT in target.parents and files.get_file_from_path(_uri(target)) is None:
                files.append(_published(target, config))
                waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = Path(page.file.abs_src_path or DOCS / page.file.src_uri)
    here = Path(page.file.src_uri).parent

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        return os.path.relpath(_uri(target), here) if target.is_file() and ROOT in target.parents else link[1]

    return _LINK.sub(moved, _FENCE_OF_TESTS.sub(r"\1", _COMMENT.sub("", markdown)))


def _linked(page: Path) -> list[Path]:
    text = page.read_text(encoding="utf-8")
    return [(page.parent / link).resolve() for link in _LINK.findall(text)]


def _uri(path: Path) -> str:
    """Where a file of the repository stands on the site: docs/ is its top, other folders keep their names."""
    place = str(path.relative_to(DOCS if DOCS in path.parents else ROOT))
    return f"{place}.md" if path.suffix == ".py" else place


def _published(path: Path, config: Any) -> File:
    """The file as it is, or a page that shows a program: a browser would save it."""
    if path.suffix != ".py":
        return File.generated(config, _uri(path), abs_src_path=str(path))
    text = f"# {path.relative_to(ROOT)}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
    return File.generated(config, _uri(path), content=text)
