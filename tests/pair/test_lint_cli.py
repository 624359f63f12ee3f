"""`twinscope lint` and `lint_isolated`: both models built in processes of their own, and nothing run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import twinscope
from twinscope.cli import main
from twinscope.errors import OptionError, SideError
from twinscope.isolated import lint_isolated

NETS = {
    "torch": """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8, eps=eps)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        raise RuntimeError("nothing is to be run")

def build():
    return Net()

def build_wrong():
    return Net(1e-6)

def build_nothing():
    return nn.Sequential(nn.ReLU())
""",
    "paddle": """
import paddle
from paddle import nn

class Net(nn.Layer):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8, epsilon=eps)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        raise RuntimeError("nothing is to be run")

def build():
    return Net()

def build_wrong():
    return Net(1e-6)

def build_nothing():
    return nn.Sequential(nn.ReLU())
""",
    "mindspore": """
import mindspore
from mindspore import nn

class Net(nn.Cell):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.fc = nn.Dense(8, 8)
        self.norm = nn.LayerNorm([8], epsilon=eps)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x):
        raise RuntimeError("nothing is to be run")

def build():
    return Net()

def build_wrong():
    return Net(1e-6)

def build_nothing():
    return nn.SequentialCell(nn.ReLU())
""",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in NETS.items():
        (tmp_path / f"net_{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_twins_are_told_the_same(place: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (f"net_{name}.py:build" for name in pair)
    assert main(["lint", first, second]) == 0
    assert capsys.readouterr().out.startswith("SAME: nothing differs in what 3 pairs of layers were told")


def test_a_setting_that_differs_is_found_with_its_lines(
    place: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = f"net_{pair[0]}.py:build", f"net_{pair[1]}.py:build_wrong"
    assert main(["lint", first, second, "--json", "lint.json"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("DIFFERENT: settings of 3 pairs of layers: 1 differ")
    row = next(line for line in printed.splitlines() if line.split()[:3] == ["norm", "layer_norm", "eps"])
    assert row.split()[3:5] == ["1e-05", "1e-06"] and "the forward pass" in row
    for name in pair:
        line = NETS[name].splitlines().index(next(x for x in NETS[name].splitlines() if "self.norm =" in x)) + 1
        assert f"net_{name}.py:{line}" in printed
    read = json.loads((place / "lint.json").read_text())
    assert [(f["attribute"], f["candidate"]["value"]) for f in read["findings"]] == [("eps", 1e-6)]
    assert {p.name for p in place.iterdir()} == {"lint.json", *(f"net_{n}.py" for n in NETS)}, "nothing is left behind"


def test_nothing_compared_is_no_pass(place: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = f"net_{pair[0]}.py:build_nothing", f"net_{pair[1]}.py:build"
    assert main(["lint", first, second, "-q"]) == 2
    assert capsys.readouterr().out == "UNDECIDED: nothing could be compared\n"


def test_what_is_left_out_is_not_told(place: Path, pair: tuple[str, str]) -> None:
    first, second = f"net_{pair[0]}.py:build", f"net_{pair[1]}.py:build_wrong"
    assert main(["lint", first, second, "--skip", "norm"]) == 0
    assert main(["lint", first, second, "--skip", "drop"]) == 1


def test_the_same_report_as_in_one_process(place: Path, pair: tuple[str, str]) -> None:
    first, second = f"net_{pair[0]}.py:build", f"net_{pair[1]}.py:build_wrong"
    report = lint_isolated(first, second)
    assert isinstance(report, twinscope.LintReport) and not report and len(report) == 1
    found = report.findings[0]
    assert isinstance(found, twinscope.LintFinding)
    assert (found.attribute, found.reference.value, found.candidate.value) == ("eps", 1e-5, 1e-6)
    assert found.candidate.source is not None and found.candidate.source.function == "Net.__init__"


def test_mistakes(place: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    good = f"net_{pair[0]}.py:build"
    assert main(["lint", good, "nowhere.py:build"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err
    assert main(["lint", good, f"net_{pair[1]}.py:biuld"]) == 2
    assert "has no biuld" in capsys.readouterr().err
    (place / "broken.py").write_text("def build():\n    raise ValueError('no model today')\n")
    with pytest.raises(SideError, match="no model today"):
        lint_isolated(good, "broken.py:build")
    with pytest.raises(OptionError, match=r"cannot be started|not a program"):
        lint_isolated(good, good, candidate_python="no-such-python")
