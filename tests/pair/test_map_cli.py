"""`twinscope map`, `convert`, `align --map` with real frameworks: a network whose attention is packed in its twin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import WeightMap
from twinscope.adapters._registry import by_name
from twinscope.building import two_models
from twinscope.cli import main
from twinscope.errors import SideError
from twinscope.running import as_arguments

pytestmark = pytest.mark.filterwarnings("ignore")

EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}

#: In each framework's words: the module, its base class, forward, Linear, LayerNorm, concatenation, attention.
WORDS: dict[str, dict[str, str]] = {
    "torch": {
        "opening": "import torch\nfrom torch import nn",
        "base": "nn.Module",
        "forward": "forward",
        "linear": "nn.Linear",
        "norm": "nn.LayerNorm(8)",
        "cut": "packed.chunk(3, -1)",
        "attention": "torch.softmax(q @ k.transpose(1, 2), -1) @ v",
        "tensor": "torch.from_numpy",
    },
    "paddle": {
        "opening": "import paddle\nfrom paddle import nn",
        "base": "nn.Layer",
        "forward": "forward",
        "linear": "nn.Linear",
        "norm": "nn.LayerNorm(8)",
        "cut": "packed.chunk(3, -1)",
        "attention": "nn.functional.softmax(q @ k.transpose([0, 2, 1]), -1) @ v",
        "tensor": "paddle.to_tensor",
    },
    "mindspore": {
        "opening": "import mindspore\nfrom mindspore import nn, ops",
        "base": "nn.Cell",
        "forward": "construct",
        "linear": "nn.Dense",
        "norm": "nn.LayerNorm([8], epsilon=1e-5)",
        "cut": "ops.chunk(packed, 3, -1)",
        "attention": "ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(1, 2)), -1), v)",
        "tensor": "mindspore.Tensor",
    },
}

SOURCE = """
import numpy as np
{opening}


class Parts({base}):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = {linear}(6, 8), {norm}
        self.q, self.k, self.v = ({linear}(8, 8) for _ in range(3))
        self.head = {linear}(8, 3)

    def {forward}(self, x):
        h = self.norm(self.embed(x))
        q, k, v = self.q(h), self.k(h), self.v(h)
        return self.head({attention})


class Packed({base}):
    def __init__(self):
        super().__init__()
        self.out, self.qkv = {linear}(8, 3), {linear}(8, 24)
        self.ln, self.inp = {norm}, {linear}(6, 8)

    def {forward}(self, x):
        packed = self.qkv(self.ln(self.inp(x)))
        q, k, v = {cut}
        return self.out({attention})


def build():
    print("a word of the user's")
    return Parts()


def build_packed():
    return Packed()


def build_without_head():
    net = Parts()
    del net.head
    return net


def build_all():
    return {{"model": Parts(), "inputs": {tensor}(inputs)}}


def build_wrong():
    raise KeyError("of the user's")


inputs = np.random.default_rng(0).standard_normal((2, 5, 6)).astype("float32")
too_wide = inputs.repeat(2, -1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the networks in every framework."""
    for framework, words in WORDS.items():
        (tmp_path / f"net_{framework}.py").write_text(SOURCE.format(**words), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path, before = list(sys.path), set(sys.modules)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        if name.startswith("net_"):
            del sys.modules[name]


def sides(pair: tuple[str, str]) -> tuple[str, str]:
    return f"net_{pair[0]}.py:build", f"net_{pair[1]}.py:build_packed"


def output(framework: str, model: Any, inputs: Any) -> Any:
    adapter = by_name(framework)
    args, kwargs = as_arguments(adapter, inputs)
    with adapter.evaluating(model):
        return np.array(adapter.to_numpy(model(*args, **kwargs)))


def save(framework: str, model: Any, path: str) -> None:
    """By the framework itself, as its users do."""
    module = sys.modules[framework]
    if framework == "mindspore":
        module.save_checkpoint(model, path)
    else:
        module.save(model.state_dict(), path)


def load(framework: str, model: Any, path: str) -> None:
    module = sys.modules[framework]
    if framework == "mindspore":
        assert module.load_param_into_net(model, module.load_checkpoint(path), strict_load=True) == ([], [])
    elif framework == "torch":
        model.load_state_dict(module.load(path, weights_only=True))
    else:
        assert model.set_state_dict(module.load(path)) == ([], [])


def test_a_map_is_made_proven_written_and_converts_checkpoints(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sides(pair)
    assert main(["map", first, second, "--inputs", f"net_{pair[0]}.py:inputs", "-o", "map.json"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("COMPLETE: 8 entries, 8 proven by running\n")
    assert "q.weight + k.weight + v.weight -> qkv.weight" in said.out
    assert "of the user's" not in said.out and "of the user's" in said.err
    mapping = WeightMap.load("map.json")
    assert mapping.complete and mapping.frameworks == pair

    with two_models(first, second, f"net_{pair[0]}.py:inputs") as (reference, candidate, given):
        save(pair[0], reference, "model" + EXTENSION[pair[0]])
        target = "twin" + EXTENSION[pair[1]]
        assert main(["convert", "model" + EXTENSION[pair[0]], target, "--map", "map.json"]) == 0
        assert "(reference to candidate)" in capsys.readouterr().out
        assert not np.allclose(output(pair[0], reference, given), output(pair[1], candidate, given), atol=1e-4)
        load(pair[1], candidate, target)
        np.testing.assert_allclose(
            output(pair[0], reference, given), output(pair[1], candidate, given), rtol=1e-4, atol=1e-5
        )
        back = "back" + EXTENSION[pair[0]]
        assert main(["convert", target, back, "--map", "map.json", "--reverse"]) == 0
        before = output(pair[0], reference, given)
        load(pair[0], reference, back)
        assert np.array_equal(before, output(pair[0], reference, given))


def test_without_inputs_packed_weights_are_left_to_decide(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", *sides(pair)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("INCOMPLETE: 8 entries, 0 proven by running, 2 not sure\n")
    assert "Not sure\n  - q.weight + k.weight + v.weight -> qkv.weight" in said
    hints = ["q.weight + k.weight + v.weight=qkv.weight", "hints.json"]
    Path("hints.json").write_text(json.dumps({"map": {"q.bias + k.bias + v.bias": "qkv.bias"}}), encoding="utf-8")
    decided = [part for hint in hints for part in ("--hints", hint)]
    assert main(["map", *sides(pair), *decided, "-q"]) == 0
    assert capsys.readouterr().out == "COMPLETE: 8 entries, 0 proven by running\n"


def test_what_is_unmatched_is_1_unless_it_is_skipped(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [f"net_{pair[0]}.py:build_all", f"net_{pair[1]}.py:build_without_head"]
    hints = ["--hints", "embed=embed", "--hints", "q=q", "--hints", "k=k", "--hints", "v=v"]
    both = ["map", models[1].replace(pair[1], pair[0]), models[0].replace(pair[0], pair[1]), *hints]
    assert main([*both, "-o", "map.json"]) == 1
    said = capsys.readouterr().out
    assert "unmatched: 0 of the reference, 2 of the candidate" in said
    assert "candidate  head.weight" in said and not WeightMap.load("map.json").complete
    assert main([*both, "--skip", "head.**"]) == 0
    assert "Skipped\n  candidate  head.weight, head.bias" in capsys.readouterr().out


def test_the_inputs_that_the_reference_brings_are_used(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", f"net_{pair[0]}.py:build_all", sides(pair)[1], "-q"]) == 0
    assert capsys.readouterr().out == "COMPLETE: 8 entries, 8 proven by running\n"
    np.savez("x.npz", np.zeros((2, 5, 12), np.float32))
    assert main(["map", f"net_{pair[0]}.py:build_all", sides(pair)[1], "--inputs", "x.npz"]) == 2
    assert "error: running the models raised " in capsys.readouterr().err


def test_errors_of_the_users_code_are_told_with_its_lines(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", sides(pair)[0], f"net_{pair[1]}.py:build_wrong"]) == 2
    said = capsys.readouterr().err
    assert f"error: candidate net_{pair[1]}.py:build_wrong: calling build_wrong() raised KeyError" in said
    assert f'net_{pair[1]}.py", line' in said and "building.py" not in said
    assert main(["map", sides(pair)[0], f"net_{pair[1]}.py:biuld_packed"]) == 2
    assert f"net_{pair[1]}.py has no biuld_packed" in capsys.readouterr().err
    assert main(["map", *sides(pair), "--hints", "emb=inp"]) == 2
    assert "the reference has no module or parameter 'emb'" in capsys.readouterr().err
    wrong = f"net_{pair[0]}.py:build_wrong"
    with pytest.raises(SideError, match=rf"reference {wrong}: calling build_wrong"), two_models(wrong, wrong):
        pass


def test_align_settles_by_running_what_names_leave_open_and_takes_a_map(
    pair: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--inputs", f"net_{pair[0]}.py:inputs"]
    assert main(["align", *sides(pair), *given, "-q"]) == 0
    assert "SAME: " in capsys.readouterr().out
    assert main(["map", *sides(pair), *given, "-o", "map.json", "-q"]) == 0
    assert main(["align", *sides(pair), *given, "-q", "--map", "map.json", "--no-backward"]) == 0
    assert "SAME: " in capsys.readouterr().out
    hints = ["--hints", "q.weight + k.weight + v.weight=qkv.weight", "--map", "q.bias + k.bias + v.bias=qkv.bias"]
    assert main(["align", *sides(pair), *given, "-q", "--no-backward", *hints]) == 0
    wrong = ["--hints", "k.weight + q.weight + v.weight=qkv.weight", *hints[2:]]
    assert main(["align", *sides(pair), *given, "-q", "--no-backward", *wrong]) == 1
    capsys.readouterr()
    assert main(["align", *sides(pair), *given, "--no-weights", "--hints", "qq=qkv"]) == 2
    assert "the reference has no module or parameter 'qq'" in capsys.readouterr().err


# -- the one order in which two frameworks can be imported -----------------------------------------------------------


def fresh(*args: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from twinscope.cli import main; sys.exit(main())"
    command = [sys.executable, "-W", "ignore", "-c", code, *args]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.mindspore
@pytest.mark.paddle
def test_mindspore_is_imported_first_where_the_files_show_that_both_are_wanted(
    place: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--frameworks") != "mindspore,paddle":
        pytest.skip("once is enough, where both are there")
    done = fresh("map", "net_paddle.py:build_all", "net_mindspore.py:build_packed", "-q")
    assert (done.returncode, done.stdout) == (0, "COMPLETE: 8 entries, 8 proven by running\n"), done.stderr
    hidden = textwrap.dedent("""
        import importlib
        build = importlib.import_module("net_mindspore").build
    """)
    Path("hidden.py").write_text(hidden, encoding="utf-8")
    done = fresh("map", "net_paddle.py:build_all", "hidden.py", "-q")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "error: mindspore cannot be imported after paddle in one process" in done.stderr
    assert "Hint: import mindspore first" in done.stderr
