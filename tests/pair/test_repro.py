"""Folders that run alone: what a finding says is seen there, in fresh processes that know nothing of Twinscope."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Finding, Overall, Phase, Result, Verdict, align
from twinscope.errors import ReproError
from twinscope.reproducing import check, material

pytestmark = pytest.mark.filterwarnings("ignore")

X = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")


def network(framework: str, told: str = "") -> Any:
    """A layer, an op, a module of the user's own, and code between them; `told` names what is wrong."""
    library = importlib.import_module(framework)
    nn = importlib.import_module(f"{framework}.nn")
    base = getattr(nn, {"torch": "Module", "paddle": "Layer", "mindspore": "Cell"}[framework])
    linear = nn.Dense if framework == "mindspore" else nn.Linear
    word = "eps" if framework == "torch" else "epsilon"
    functions = library.ops if framework == "mindspore" else nn.functional
    wrong = True if framework == "paddle" else "tanh"
    right = False if framework == "paddle" else "none"
    sigmoid = library.ops.sigmoid if framework == "mindspore" else library.nn.functional.sigmoid

    class Own(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.fc = linear(16, 16)

        def forward(self, x: Any) -> Any:
            return sigmoid(self.fc(x)) * x

        construct = forward

    class Net(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.fc = linear(16, 16)
            self.norm = nn.LayerNorm([16], **{word: 1e-4 if told == "layer" else 1e-5})
            self.own = Own()
            self.head = linear(16, 16)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.fc(x))
            x = functions.gelu(x, approximate=wrong if told == "op" else right)
            if told == "between":
                x = x * 1.01
            return self.head(self.own(x))

        construct = forward

    net = Net()
    return net.set_train() if framework == "mindspore" else net


def found(pair: tuple[str, str], told: str) -> Finding:
    result = align(network(pair[0]), network(pair[1], told), X)
    assert result.verdict is Overall.DIFFERENT
    return next(f for f in result.findings if f.verdict is Verdict.BUG)


def run(folder: Path) -> tuple[int, str]:
    """`run.py` in a process that has no Twinscope."""
    told = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", f"import sys; sys.modules['twinscope'] = None; sys.argv[1:] = []; "
               f"import runpy; runpy.run_path({str(folder / 'run.py')!r}, run_name='__main__')"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=told, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def rhos(printed: str) -> list[float]:
    return [float(r) for r in re.findall(r"^(?:out|gradient)\S*.*?: rho (\S+?)[, ]", printed, re.MULTILINE)]


def clean(pair: tuple[str, str], told: str = "") -> Result:
    return align(network(pair[0]), network(pair[1], told), X, hold=True)


def written(result: Result, where: str, phase: Phase, folder: Path) -> Path:
    assert result.traces is not None
    pair = next(p.pair for p in result.pairs if p.reference.where == where and p.reference.phase is phase)
    return material(pair, phase, result.traces, result.matching).write(folder, f"{where}\n  of a test")


@pytest.mark.parametrize("told", ["layer", "op", "between"])
def test_the_folder_shows_what_was_found(pair: tuple[str, str], told: str, tmp_path: Path) -> None:
    finding = found(pair, told)
    folder = finding.repro(tmp_path / "repro", check=False)
    assert {p.name for p in folder.iterdir()} == {"README.md", "run.py", "reference.py", "candidate.py", "tensors"}
    code, printed = run(folder)
    assert code == 1 and "DIFFERENT" in printed and "not what the run" not in printed, printed
    assert max(rhos(printed)) > 8
    if told != "between" and "mindspore" not in pair:  # its float64 is another one
        assert max(rhos(printed)) == pytest.approx(finding.numbers["rho"], rel=0.2)
    for file in folder.rglob("*"):
        text = "" if file.suffix == ".npy" or file.is_dir() else file.read_text()
        assert "twinscope" not in text and "/tmp" not in text, file
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# BUG") and "python run.py" in readme


@pytest.mark.parametrize(
    ("where", "phase"), [("norm", Phase.FORWARD), ("own", Phase.FORWARD), ("norm", Phase.BACKWARD)]
)
def test_the_folder_of_a_good_call_shows_noise(pair: tuple[str, str], where: str, phase: Phase, tmp_path: Path) -> None:
    code, printed = run(written(clean(pair), where, phase, tmp_path / "repro"))
    assert code == 0 and "SAME" in printed and "not what the run" not in printed, printed
    # MindSpore's sigmoid is a little less exact than others': its float64 says that it is the same function
    assert rhos(printed) and all(r <= 3 or (where == "own" and "mindspore" in pair) for r in rhos(printed))
    assert ("gradient of input 0" in printed) is (phase is Phase.BACKWARD)


def test_a_backward_pass_that_differs_is_shown(pair: tuple[str, str], tmp_path: Path) -> None:
    code, printed = run(written(clean(pair, "layer"), "norm", Phase.BACKWARD, tmp_path / "repro"))
    gradient = next(line for line in printed.splitlines() if line.startswith("gradient of input 0"))
    assert code == 1 and rhos(gradient)[0] > 8, printed


def test_it_is_checked_when_it_is_written(pair: tuple[str, str], tmp_path: Path) -> None:
    finding = found(pair, "op")
    folder = finding.repro(tmp_path / "repro")
    assert "DIFFERENT" in str(check(folder, shows=True))
    script = folder / "candidate.py"
    text = script.read_text()
    script.write_text(re.sub(r"approximate=(True|'tanh')", "approximate=" + _right(pair[1]), text))
    assert script.read_text() != text
    with pytest.raises(ReproError, match="not the call that was judged"):
        check(folder)
    script.write_text("import nothing_of_the_kind\n" + text)
    with pytest.raises(ReproError, match="does not run alone"):
        check(folder)


def _right(framework: str) -> str:
    return "False" if framework == "paddle" else "'none'"


def test_what_cannot_be_written_down_is_said(pair: tuple[str, str], tmp_path: Path) -> None:
    finding = found(pair, "op")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ReproError, match="is there already and is not empty"):
        finding.repro(tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    bare = Finding(Verdict.BUG, Phase.FORWARD, 0, "a", "a", (None, None), "it differs")
    with pytest.raises(ReproError, match="no repro of a: it is not about a call"):
        bare.repro(tmp_path / "bare")
    assert not (tmp_path / "bare").exists()


def test_weights_are_no_call(pair: tuple[str, str], tmp_path: Path) -> None:
    result = align(network(pair[0]), network(pair[1]), X, weights=False)
    weights = [f for f in result.findings if f.phase is Phase.WEIGHT]
    assert weights
    with pytest.raises(ReproError, match="there is no call to make again"):
        weights[0].repro(tmp_path / "repro")


def test_without_tensors_there_is_nothing_to_write(pair: tuple[str, str], tmp_path: Path) -> None:
    result = align(network(pair[0]), network(pair[1], "op"), X, keep="stats", atol=0.0)
    calls = [f for f in result.findings if f.verdict is Verdict.BUG and f.phase is Phase.FORWARD]
    assert calls
    with pytest.raises(ReproError, match="does not hold the values"):
        calls[0].repro(tmp_path / "repro")
