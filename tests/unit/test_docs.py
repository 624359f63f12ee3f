"""The documents without running them: translations have the same code, links lead somewhere, examples are the files.

What they show is run by tests/pair/test_docs.py.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from documents import ROOT, Block, agrees, blocks
from twinscope import Plan, cli

DOCUMENTS = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])
TWINS = [p for p in DOCUMENTS if p.name.endswith(".zh.md")]
#: those of the documented systems are run by tests/compat/test_documented_examples.py
EXAMPLES = sorted(p for p in (ROOT / "examples").rglob("*.py") if "documented" not in p.parts)
NAMES = [str(p.relative_to(ROOT)) for p in DOCUMENTS]


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code(block: Block) -> object:
    """What a block does: its tokens without comments and docstring-like prose."""
    if block.language != "python":
        return [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in block.text.splitlines()]
    skipped = (tokenize.COMMENT, tokenize.NL)
    tokens = tokenize.generate_tokens(io.StringIO(block.text).readline)
    return [t.string for t in tokens if t.type not in skipped]


@pytest.mark.parametrize("name", [str(p.relative_to(ROOT)) for p in TWINS])
def test_a_translation_has_the_code_and_the_structure_of_its_original(name: str) -> None:
    here, there = read(name), read(name.replace(".zh.md", ".md"))
    mine, original = blocks(here), blocks(there)
    assert [(b.language, b.tags, code(b)) for b in mine] == [(b.language, b.tags, code(b)) for b in original]
    assert headings(here) == headings(there)
    assert len(re.findall(r"[\u4e00-\u9fff]", here)) > 500, "this is not Chinese"


def headings(text: str) -> list[int]:
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [len(h) for h in re.findall(r"^(#+) ", plain, re.MULTILINE)]


def test_other_code_is_noticed() -> None:
    first, second, comment = (blocks(f"```python\n{t}\n```\n")[0] for t in ("f(1)", "f(2)", "f(1)  # why"))
    assert code(first) != code(second)
    assert code(first) == code(comment)


@pytest.mark.parametrize(
    "name", ["README.zh.md", "docs/capture.zh.md", "docs/compare.zh.md", "docs/judge.zh.md", "docs/weights.zh.md"]
)
def test_the_translations_that_are_promised_are_there(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_fences_are_closed_and_known(name: str) -> None:
    text = read(name)
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks(text))
    for block in blocks(text):
        assert block.language in ("python", "sh", "text", "json"), f"{name}:{block.line}"
        assert all(t in ("alone", "output") or t.startswith("file=") for t in block.tags), f"{name}:{block.line}"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", read(name)):
        assert "://" not in target, f"{name} leads out: {target}"
        assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_no_document_names_a_machine(name: str) -> None:
    assert not re.search(r"/tmp/|/home/|/mnt/|pypi|simple/", read(name), re.IGNORECASE)


def test_the_readme_shows_the_examples_as_they_are() -> None:
    shown = {b.file: b.text for b in blocks(read("README.md")) if b.file}
    assert {p.name for p in EXAMPLES} == set(shown)
    for path in EXAMPLES:
        assert path.read_text(encoding="utf-8") == shown[path.name], f"README.md shows another {path.name}"


def test_every_option_of_capture_is_told() -> None:
    for name in ("docs/capture.md", "docs/capture.zh.md"):
        told = set(re.findall(r"^\| `(\w+)`", read(name), re.MULTILINE))
        assert told >= set(Plan.__dataclass_fields__), name


def test_every_command_and_option_is_told() -> None:
    import typer

    text = read("docs/command-line.md")
    for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        assert f"## twinscope {name}" in text
        section = text.split(f"## twinscope {name}", 1)[1].split("\n## ", 1)[0]
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option not in ("--help", "--debug"):
                    assert f"`{option}" in section, f"twinscope {name} {option}"


def test_shown_output_is_held_against_what_is_printed() -> None:
    assert agrees("a  1.5 of 3\n...\nend\n", "a 1.7e-3   of 4\n\nb\nc\nend\n")
    assert not agrees("a 1 of 3\nend\n", "a 1 of 3\nb\nend\n")
    assert not agrees("SAME\n", "DIFFERENT\n")
    assert not agrees("a -1\n", "b -1\n")
