"""The documents are right: every block runs, and prints what is shown."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

from documents import ROOT, agrees, blocks, run

DOCUMENTS = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md") if ".zh." not in p.name)]


@pytest.fixture(autouse=True)
def with_torch_and_paddle(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--frameworks") != "torch,paddle":
        pytest.skip("the documents run once, with torch and paddle")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_runs_and_prints_what_is_shown(name: str, tmp_path: Path) -> None:
    document = ROOT / name
    everything = blocks(document.read_text(encoding="utf-8"))
    if any("mindspore" in b.text for b in everything if "alone" in b.tags):
        assert importlib.util.find_spec("mindspore"), "this document also needs mindspore"
    printed = {block.line: text for block, text in run(document, tmp_path)}
    shown = 0
    for before, block in itertools.pairwise(everything):
        if block.is_output:
            assert agrees(block.text, printed[before.line]), f"{name}:{block.line}, printed:\n{printed[before.line]}"
            shown += 1
    assert shown or name != "README.md"


def test_a_block_that_raises_is_told_with_its_line(tmp_path: Path) -> None:
    document = tmp_path / "wrong.md"
    document.write_text("text\n\n```python\nx = 1\nraise KeyError(x)\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"(?s)wrong\.md.*line 5"):
        run(document, tmp_path)


def test_a_shell_block_that_fails_is_told(tmp_path: Path) -> None:
    document = tmp_path / "wrong.md"
    document.write_text("```sh\ntwinscope show nowhere\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="no such directory"):
        run(document, tmp_path)
