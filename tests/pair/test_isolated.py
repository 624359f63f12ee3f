"""Alignment with each side in its own process: the same result as in one, and clear words when a side fails."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import InputPair, Inputs, align
from twinscope.cli import main
from twinscope.errors import NotAModelError, OptionError, SideError, WeightError
from twinscope.isolated import _decode, _encode, align_isolated
from twinscope.records import Overall
from twinscope.result import Result, rows

TORCH = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, wide=16, approximate="none"):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, wide)
        self.bn = nn.BatchNorm1d(wide)
        self.fc2 = nn.Linear(wide, wide)
        self.approximate = approximate

    def forward(self, x, shift=None):
        h = self.bn(self.fc1(self.norm(x)))
        h = F.gelu(h, approximate=self.approximate)  # here
        h = self.fc2(h)
        return h if shift is None else h + shift

def build():
    torch.manual_seed(1)
    return Net().eval()  # the running variance is another one in each framework's training mode

def build_with_bug():
    return Net(approximate="tanh").eval()

def build_wider():
    return Net(24).eval()

def build_all():
    return {"model": build(), "loss": lambda out: (out * out).sum(), "inputs": torch.ones(4, 8)}

def build_pair():
    return Net().eval(), lambda out: (out * out).sum()

a_model = build()
"""

PADDLE = """
import sys
import paddle
from paddle import nn
from paddle.nn import functional as F

class Net(nn.Layer):
    def __init__(self, approximate=False):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 16)
        self.bn = nn.BatchNorm1D(16)
        self.fc2 = nn.Linear(16, 16)
        self.approximate = approximate

    def forward(self, x, shift=None):
        h = self.bn(self.fc1(self.norm(x)))
        h = F.gelu(h, approximate=self.approximate)  # here
        h = self.fc2(h)
        return h if shift is None else h + shift

def build():
    paddle.seed(2)
    return frozen(Net())

def build_with_bug():
    return frozen(Net(True))

def build_alone():
    if "torch" in sys.modules or "mindspore" in sys.modules:
        raise RuntimeError("another framework is here")
    return build()

def frozen(net):
    net.eval()
    return net
"""

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with both networks, from which nothing may be left elsewhere."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    nets = tmp_path / "nets"
    nets.mkdir()
    (nets / "net_torch.py").write_text(TORCH, encoding="utf-8")
    (nets / "net_paddle.py").write_text(PADDLE, encoding="utf-8")
    monkeypatch.chdir(nets)
    before = set(sys.modules)
    yield nets
    for name in set(sys.modules) - before:
        if name.startswith("net_"):
            del sys.modules[name]
    assert list(temporary.iterdir()) == []
    assert not (nets / "__pycache__").exists()


def load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[file.stem] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the framework, when it is imported
        spec.loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def table(result: Result) -> list[dict[str, Any]]:
    return [row for pair in result.pairs for row in rows(pair)]


def words(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its numbers; whether rounding agrees is of no interest, nor whose float64 said so."""
    plain = {k: v for k, v in row.items() if not isinstance(v, float) and k not in ("rho", "rho64", "floor")}
    words = {k: (plain[k] or "").replace("EXACT", "NOISE") for k in ("verdict", "judged") if k in plain}
    return {**plain, **words}


def write(place: Path, name: str, code: str) -> str:
    (place / name).write_text(textwrap.dedent(code), encoding="utf-8")
    return f"{name}:build"


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "verdict"), [("build", Overall.SAME), ("build_with_bug", Overall.DIFFERENT)])
def test_both_in_float64_each_in_its_process(place: Path, function: str, verdict: Overall) -> None:
    result = align_isolated("net_torch.py:build", f"net_paddle.py:{function}", inputs=X, confirm=True)
    assert result.verdict is verdict and result.confirmation is not None
    assert result.confirmation.verdict is verdict and not result.confirmation.decisive
    assert result.confirmation.numbers["bits"] > 12 or verdict is Overall.DIFFERENT


@pytest.mark.torch
@pytest.mark.paddle
@pytest.mark.parametrize(("function", "verdict"), [("build", Overall.SAME), ("build_with_bug", Overall.DIFFERENT)])
def test_the_same_result_as_in_one_process(place: Path, function: str, verdict: Overall) -> None:
    apart = align_isolated("net_torch.py:build", f"net_paddle.py:{function}", inputs=X)
    torch_net, paddle_net = load(place / "net_torch.py"), load(place / "net_paddle.py")
    together = align(torch_net.build(), getattr(paddle_net, function)(), X)
    assert apart.verdict is together.verdict is verdict
    first_table, second_table = table(apart), table(together)
    assert [words(row) for row in first_table] == [words(row) for row in second_table]
    for a, b in zip(first_table, second_table, strict=True):
        # paddle and torch in one process share its threads, and sums over fewer threads round otherwise
        assert a["verdict"] != "BUG" or a["error"] == pytest.approx(b["error"], rel=0.01)
    assert apart.notes == together.notes
    assert [(f.phase, f.reference) for f in apart.findings] == [(f.phase, f.reference) for f in together.findings]
    if verdict is Overall.DIFFERENT:
        first = apart.first_divergence
        assert first is not None and first.reference == "(root) · gelu"
        line = TORCH.splitlines().index("        h = F.gelu(h, approximate=self.approximate)  # here") + 1
        assert str(first.source[0]) == f"net_torch.py:{line}"
        assert str(first.source[1]).startswith("net_paddle.py:")


@pytest.mark.torch
@pytest.mark.paddle
def test_each_process_has_its_own_framework_only(place: Path) -> None:
    assert align_isolated("net_torch.py", "net_paddle.py:build_alone", inputs=X).verdict is Overall.SAME


@pytest.mark.torch
def test_without_weights_two_seeds_differ(place: Path) -> None:
    same = align_isolated("net_torch.py:build", "net_torch.py:build_with_bug", inputs=X, weights=False)
    assert same.verdict is Overall.DIFFERENT
    assert same.first_divergence is not None and same.findings[0].phase == "weight"


@pytest.mark.torch
def test_out_keeps_the_traces(place: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    out = tmp_path / "kept"
    result = align_isolated("net_torch.py", "net_torch.py", inputs=X, out=out, stage=stages.append, backward=False)
    assert result.verdict is Overall.SAME
    assert {p.name for p in out.iterdir()} == {"reference", "candidate", "reference.log", "candidate.log"}
    assert stages == [
        "running the reference, net_torch.py:build",
        "running the candidate, net_torch.py:build",
        "comparing",
    ]
    assert main(["compare", str(out / "reference"), str(out / "candidate"), "-q"]) == 0


# -- what a function may return, and what inputs may be --------------------------------------------------------------


@pytest.mark.torch
def test_forms_of_the_function(place: Path) -> None:
    both = align_isolated("net_torch.py:build_all", "net_torch.py:build_pair")
    assert both.verdict is Overall.SAME
    # the loss is the functions' own: with the default one on one side the gradients differ
    lone = align_isolated("net_torch.py:build_all", "net_torch.py:a_model")
    assert lone.verdict is Overall.DIFFERENT
    assert {str(f.phase) for f in lone.findings} & {"backward", "gradient", "forward"}


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["positional", "keywords", "npy", "function", "structure"])
def test_forms_of_the_inputs(place: Path, kind: str) -> None:
    shift = np.full((4, 16), 3.0, np.float32)
    inputs: Any
    if kind == "positional":
        np.savez(place / "x.npz", X, shift)
        inputs = "x.npz"
    elif kind == "keywords":
        np.savez(place / "x.npz", x=X, shift=shift)
        inputs = place / "x.npz"
    elif kind == "npy":
        np.save(place / "x.npy", X)
        inputs = "x.npy"
    elif kind == "function":
        (place / "data.py").write_text(
            "import torch\ndef make():\n    return {'x': torch.ones(4, 8)}\n", encoding="utf-8"
        )
        inputs = "data.py:make"
    else:
        inputs = InputPair(Inputs(X, shift=shift), {"x": X, "shift": shift})
    result = align_isolated("net_torch.py", "net_torch.py", inputs=inputs, backward=False)
    assert result.verdict is Overall.SAME
    added = any(p.reference.op in ("add", "__add__") for p in result.pairs)
    assert added is (kind in ("positional", "keywords", "structure"))


def test_structures_survive() -> None:
    given = {"a": (X, [1, None, "s", True, 2.5]), 3: Inputs(X, k={"deep": np.int64(4)})}
    arrays: list[Any] = []
    coded = _encode(given, None, arrays)
    back = _decode(coded, arrays)
    assert back["a"][1] == [1, None, "s", True, 2.5] and isinstance(back["a"], tuple)
    assert back["a"][0] is X and back[3].args[0] is X and back[3].kwargs["k"]["deep"] == 4
    with pytest.raises(OptionError, match="the inputs hold a object"):
        _encode([object()], None, [])


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_the_users_traceback_is_shown(place: Path) -> None:
    spec = write(
        place, "net_bad.py", "def build():\n    return helper(3)\n\ndef helper(n):\n    raise KeyError('depth')\n"
    )
    with pytest.raises(SideError) as caught:
        align_isolated(spec, spec, inputs=X)
    text = str(caught.value)
    assert text.startswith("reference net_bad.py:build: calling build() raised KeyError: 'depth'")
    assert "line 2, in build" in text and "line 5, in helper" in text
    assert "isolated.py" not in text and "_side.py" not in text


@pytest.mark.torch
def test_the_side_at_fault_is_named(place: Path) -> None:
    spec = write(place, "net_bad.py", "import there_is_no_such_package\n")
    with pytest.raises(SideError, match=r"candidate net_bad.py:build: loading net_bad.py raised ModuleNotFoundError"):
        align_isolated("net_torch.py", spec, inputs=X)
    code = TORCH.replace("h = self.fc2(h)", "raise ValueError('in forward')")
    (place / "net_raises.py").write_text(code, encoding="utf-8")
    with pytest.raises(
        SideError, match=r"(?s)candidate .*running the model raised ValueError: in forward.*net_raises.py"
    ):
        align_isolated("net_torch.py", "net_raises.py", inputs=X)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("def built(): pass", OptionError, r"net_x.py has no build\nHint: did you mean 'built'"),
        ("", OptionError, "net_x.py has no build\nHint: define a function build"),
        ("build = 3", OptionError, "net_x.py:build is a int, neither a function nor a model"),
        ("def build(): pass", OptionError, "net_x.py:build returned None"),
        ("def build(): return 1, 2, 3", OptionError, "returned a tuple of 3"),
        ("def build(): return {'modle': 1}", OptionError, "returned a dict with 'modle'\nHint: did you mean 'model'"),
        ("def build(): return {'loss': None}", OptionError, "returned a dict without 'model'"),
        ("def build(): return 1, 2", OptionError, "the loss is a int, not a function"),
        ("def build(): return 'model'", NotAModelError, "str is not a model of a known framework"),
        ("def build(x): return x", SideError, "missing 1 required positional argument"),
        ("def build(:", SideError, "raised .*SyntaxError"),
        ("raise SystemExit(3)", SideError, "loading net_x.py raised SystemExit: 3"),
        ("import os\nos.abort()", SideError, r"its process died \(SIGABRT\)"),
        ("import os\nprint('last words', flush=True)\nos._exit(7)", SideError, r"(?s)exit status 7\).*last words"),
    ],
)
def test_bad_functions(place: Path, code: str, error: type[Exception], message: str) -> None:
    write(place, "net_x.py", code)
    with pytest.raises(error, match=message) as caught:
        align_isolated("net_x.py:build", "net_x.py:build", inputs=X)
    assert str(caught.value).startswith("reference net_x.py:build: ")


def test_bad_options(place: Path, tmp_path: Path) -> None:
    spec = "net_torch.py:build"
    with pytest.raises(OptionError, match=r"candidate: there is no file nowhere.py"):
        align_isolated(spec, "nowhere.py:build", inputs=X)
    with pytest.raises(OptionError, match="reference=int is not a file and a name"):
        align_isolated(3, spec, inputs=X)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="candidate_python: nowhere/python is not a program"):
        align_isolated(spec, spec, inputs=X, candidate_python="nowhere/python")
    with pytest.raises(OptionError, match=r"loss= cannot be handed to another process"):
        align_isolated(spec, spec, inputs=X, loss=abs)
    with pytest.raises(OptionError, match=r"'levle' is not an option"):
        align_isolated(spec, spec, inputs=X, levle="op")
    with pytest.raises(OptionError, match=r"inputs: there is no file x.npz"):
        align_isolated(spec, spec, inputs="x.npz")
    (place / "x.npz").write_bytes(b"nonsense")
    with pytest.raises(OptionError, match=r"inputs: x.npz cannot be read"):
        align_isolated(spec, spec, inputs="x.npz")
    np.save(place / "x.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(OptionError, match=r"inputs: x.npy cannot be read"):
        align_isolated(spec, spec, inputs="x.npy")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OptionError, match="the directory cannot be made"):
        align_isolated(spec, spec, inputs=X, out=tmp_path / "file")


@pytest.mark.torch
def test_what_only_the_processes_know(place: Path) -> None:
    with pytest.raises(OptionError, match=r"reference net_torch.py:build: there are no inputs"):
        align_isolated("net_torch.py", "net_torch.py")
    with pytest.raises(WeightError, match=r"(?s)candidate net_torch.py:build_wider: weights were not copied.*fc1"):
        align_isolated("net_torch.py", "net_torch.py:build_wider", inputs=X)


@pytest.mark.skipif(os.name == "nt", reason="the other interpreter is a shell script")
def test_an_interpreter_without_numpy(place: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(SideError, match=r"(?s)reference .*its process died \(exit status 1\).*No module named 'numpy'"):
        align_isolated("net_torch.py", "net_torch.py", inputs=X, reference_python=python)


# -- by the command line ---------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.paddle
def test_exit_codes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(place / "x.npz", X)
    common = ["--inputs", "x.npz", "-q"]
    assert main(["align", "net_torch.py:build", "net_paddle.py:build", *common]) == 0
    assert main(["align", "net_torch.py:build", "net_paddle.py:build_with_bug", *common, "--csv", "r.csv"]) == 1
    assert (place / "r.csv").is_file()
    capsys.readouterr()
    assert main(["align", "net_torch.py:build", "net_paddle.py:nothing", *common]) == 2
    assert "candidate net_paddle.py:nothing: net_paddle.py has no nothing" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.paddle
def test_demo_checks_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr().out
    assert "SAME" in said and "demo passed" in said
    assert "blocks.1 · gelu" in said and "paddle_network.py:" in said
    made = {p.name for p in (tmp_path / "demo").iterdir()}
    assert {"bug.json", "bug.csv", "bug.txt", "clean.json", "clean.csv", "clean.txt", "paddle_network.py"} <= made


@pytest.mark.torch
def test_demo_fails_when_the_bug_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import twinscope.demo as demo

    monkeypatch.setattr(demo, "_REST", demo._REST.replace("bug=True", "bug=False"))
    outcome = demo.run(tmp_path, pair=("torch", "torch"))
    assert outcome.clean and outcome.broken and not outcome.found
    assert not outcome.passed and "FAILED" in outcome.says


ATTENTION = {
    "torch": """
import numpy as np
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        return self.out(torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x))

def build():
    torch.manual_seed(0)
    return {"model": Attention(), "inputs": np.random.default_rng(0).standard_normal((2, 3, 8)).astype("float32")}
""",
    "paddle": """
import paddle

class Attention(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.d, self.c, self.b, self.a = (paddle.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        return self.d(paddle.nn.functional.softmax(self.a(x) @ self.c(x).transpose([0, 2, 1]), -1) @ self.b(x))

def build():
    return Attention()

def build_with_bug():
    model = Attention()
    model.forward = lambda x: model.d(paddle.nn.functional.softmax(model.a(x) @ model.b(x).transpose([0, 2, 1]), -1))
    return model
""",
}


@pytest.mark.torch
@pytest.mark.paddle
def test_weights_whose_names_say_nothing_find_their_place_by_the_recorded_run(tmp_path: Path) -> None:
    reference, candidate = (f"{_written(tmp_path, fw)}:build" for fw in ("torch", "paddle"))
    result = align_isolated(reference, candidate)
    assert result.verdict is Overall.SAME, str(result)
    assert not any("nothing was proven" in note for note in result.notes)


@pytest.mark.torch
@pytest.mark.paddle
def test_where_a_recorded_run_does_not_decide_either_the_weights_are_refused(tmp_path: Path) -> None:
    reference, candidate = _written(tmp_path, "torch"), _written(tmp_path, "paddle")
    with pytest.raises(WeightError, match="not copied") as caught:
        align_isolated(f"{reference}:build", f"{candidate}:build_with_bug")
    assert "twinscope map" in str(caught.value)


def _written(folder: Path, framework: str) -> Path:
    file = folder / f"{framework}_attention.py"
    file.write_text(ATTENTION[framework])
    return file
