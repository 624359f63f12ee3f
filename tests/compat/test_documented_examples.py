"""Every code block of the documents, run in a process of its own, as it stands and with a fault planted in it.

The scripts are in examples/documented; what each of them changes, and why, is said at its top. A fault is planted in a
copy: a line that is there once is replaced by another.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "documented"
SOURCE = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.slow


class Place:
    """A directory with copies of the scripts, to run them in and to break them in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(SCRIPTS, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def plant(self, file: str, before: str, after: str) -> None:
        text = (self.path / file).read_text()
        assert text.count(before) == 1, f"{before!r} is {text.count(before)} times in {file}"
        (self.path / file).write_text(text.replace(before, after))

    def run(self, name: str, **environment: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("PADIFF_")}
        env |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
        done = subprocess.run(
            [sys.executable, f"{name}.py"],
            cwd=self.path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def needs(request: pytest.FixtureRequest, *frameworks: str) -> None:
    chosen = request.config.getoption("--frameworks").split(",")
    if not set(frameworks) <= set(chosen):
        pytest.skip(f"needs {' and '.join(frameworks)}")


@pytest.fixture
def torch_paddle(request: pytest.FixtureRequest) -> None:
    needs(request, "torch", "paddle")


@pytest.fixture
def torch_mindspore(request: pytest.FixtureRequest) -> None:
    needs(request, "torch", "mindspore")


def in_order(text: str, parts: Sequence[str]) -> bool:
    """Whether the parts, patterns, are found one after the other."""
    at = 0
    for part in parts:
        found = re.compile(part).search(text, at)
        if found is None:
            pytest.fail(f"{part!r} is not in what follows:\n{text[at:][:3000]}")
        at = found.end()
    return True


# -- PPAutoDiff --------------------------------------------------------------------------------------------------------


def test_ppautodiff_as_it_stands(torch_paddle: None, place: Place) -> None:
    out = place.run("ppautodiff_readme_1")
    assert in_order(
        out, [r"Max output diff is \S+", r"forward 4 steps compared\.", r"bac\w+ 4 steps compared\.", "SUCCESS !!!"]
    )
    assert "FAILED" not in out


def test_ppautodiff_with_weights_that_are_not_copied(torch_paddle: None, place: Place) -> None:
    place.plant("ppautodiff_readme_1.py", "auto_weights=True", "auto_weights=False")
    out = place.run("ppautodiff_readme_1")
    assert in_order(
        out,
        [
            "Max output diff is",
            "After training, weight value is different for param `weight`",
            r"paddle: at `Linear\(in_features=100, out_features=100, dtype=float32\)`",
            r"torch: at `Linear\(in_features=100, out_features=100, bias=True\)`",
            "FAILED !!!",
            r"Diff found in `Forward  Stagy` in step: 0, net_id is \S+ vs \S+",
            "Type of layer is",
            "Not equal to tolerance rtol=1e-07, atol=0.0001",
            "Mismatched elements",
            "Paddle Stacks",
            r"ppautodiff_readme_1\.py: \d+ +forward",
            r"x = self\.linear1\(x\)",
            "Torch  Stacks",
            r"ppautodiff_readme_1\.py: \d+ +forward",
        ],
    )
    assert "SUCCESS" not in out and "twinscope" not in out.split("Paddle Stacks")[1]


def test_ppautodiff_with_a_fault_in_the_backward_pass(torch_paddle: None, place: Place) -> None:
    head, name, tail = (place.path / "ppautodiff_readme_1.py").read_text().partition("class SimpleModule")
    assert tail.count("x = self.act(x)\n") == 1
    wrong = "x = self.act(x)\n        x.register_hook(lambda g: g * 1.5)\n"
    broken = head + name + tail.replace("x = self.act(x)\n", wrong)
    (place.path / "ppautodiff_readme_1.py").write_text(broken)
    out = place.run("ppautodiff_readme_1")
    assert in_order(
        out, ["After training, grad value is different", "forward 4 steps compared", "FAILED !!!", "Backward Stagy"]
    )


# -- PaDiff 0.2, the tutorial ------------------------------------------------------------------------------------------

PASSED = [
    r"\[AutoDiff\] Your options:",
    r"atol: `0.0001`",
    r"\[AutoDiff\] Assign weight success !!!",
    r"\[AutoDiff\] =================Train Step 0=================",
    r"\[AutoDiff\] Max elementwise output diff is \S+",
    r"\[AutoDiff\] forward stage compared\.",
    r"\[AutoDiff\] backward stage compared\.",
    r"\[AutoDiff\] weight and grad compared\.",
    r"\[AutoDiff\] SUCCESS !!!",
]
#: A wrong activation: the same network but for one number.
WRONG = ("class SimpleModule", "x = self.act(x)", "x = self.act(x) * 1.01")


def spoil(place: Place, script: str) -> None:
    """In the torch half of a script, one line made wrong."""
    path = place.path / f"{script}.py"
    head, name, tail = path.read_text().partition(WRONG[0])
    assert tail.count(WRONG[1]) == 1
    path.write_text(head + name + tail.replace(WRONG[1], WRONG[2]))


@pytest.mark.parametrize(
    "script", ["padiff_tutorial_1_auto_diff", "padiff_tutorial_2_loss_fn", "padiff_tutorial_3_optimizer"]
)
def test_the_tutorial_as_it_stands(torch_paddle: None, place: Place, script: str) -> None:
    out = place.run(script)
    times = 1 if "1_" in script else 2
    steps = 12 if "optimizer" in script else times
    assert in_order(out, PASSED * times if times == 1 else PASSED)
    assert "FAILED" not in out and out.count("SUCCESS !!!") == times
    assert len(re.findall(r"Train Step \d+=", out)) == steps


@pytest.mark.parametrize(
    "script", ["padiff_tutorial_1_auto_diff", "padiff_tutorial_2_loss_fn", "padiff_tutorial_3_optimizer"]
)
def test_the_tutorial_with_a_fault(torch_paddle: None, place: Place, script: str) -> None:
    spoil(place, script)
    out = place.run(script)
    assert "SUCCESS !!!" not in out
    assert in_order(
        out,
        [
            "Assign weight success",
            "FAILED !!!",
            r"Diff found in `Forward Stage` in step: 0, net_id is \S+ vs \S+",
            "Type of layer is",
            "Not equal to tolerance rtol=",
            "Mismatched elements",
            "Max absolute difference",
            "<---  ?\\*\\*\\* HERE \\*\\*\\*",
            "Stacks",
            rf"{script}\.py: \d+ +forward",
        ],
    )


def test_weights_that_are_not_aligned(torch_paddle: None, place: Place) -> None:
    place.plant("padiff_tutorial_1_auto_diff.py", "auto_weights=True", "auto_weights=False")
    out = place.run("padiff_tutorial_1_auto_diff")
    assert "FAILED !!!" in out and "SUCCESS" not in out
    report = place.path / "diff_log" / "weight_diff.log"
    assert report.is_file() and "linear1.weight" in report.read_text()
    assert str(report) in out.replace("/private", "")


def test_assign_weight_as_it_stands(torch_paddle: None, place: Place) -> None:
    out = place.run("padiff_tutorial_4_assign_weight")
    assert "Assign weight success !!!" in out and out.rstrip().endswith("True")


def test_assign_weight_with_shapes_that_do_not_fit(torch_paddle: None, place: Place) -> None:
    place.plant("padiff_tutorial_4_assign_weight.py", "paddle.nn.Linear(100, 10)", "paddle.nn.Linear(100, 100)")
    out = place.run("padiff_tutorial_4_assign_weight", PADIFF_PATH_LOG="ON")
    assert in_order(
        out,
        [
            "Assign weight Failed !!!",
            r"paddle: `Linear\(in_features=100, out_features=100, dtype=float32\)`",
            "SimpleLayer.linear2.weight",
            r"torch: `Linear\(in_features=100, out_features=10, bias=True\)`",
            "SimpleModule.linear2.weight",
            r"is not the same\. \[100, 100\] vs \[100, 10\]",
            r"\(skip\)",
            r"\*\*\* HERE \*\*\*",
            "Hint",
        ],
    )
    assert out.rstrip().endswith("False")


# -- PaDiff 0.2, ViTPose -----------------------------------------------------------------------------------------------

VITPOSE = {
    "padiff_vitpose_1_forward": 2,
    "padiff_vitpose_2_loss": 2,
    "padiff_vitpose_3_multi_step_loader": 2,
    "padiff_vitpose_3_multi_step_steps": 1,
    "padiff_vitpose_4_single_step": 1,
}
#: One number of one layer of the paddle network, in the second of three blocks.
FAULT = (
    "        x = x + self.drop_path(self.mlp(self.norm2(x)))\n",
    "        x = x + self.drop_path(self.mlp(self.norm2(x))) * 1.001\n",
)


@pytest.mark.parametrize("script", sorted(VITPOSE))
def test_vitpose_as_it_stands(torch_paddle: None, place: Place, script: str) -> None:
    out = place.run(script)
    assert out.count("SUCCESS !!!") == VITPOSE[script] and "FAILED" not in out
    assert "Assign weight success !!!" in out
    if "steps" in script:
        assert len(re.findall(r"Train Step \d+=", out)) == 10


@pytest.mark.parametrize("script", sorted(VITPOSE))
def test_vitpose_with_a_fault(torch_paddle: None, place: Place, script: str) -> None:
    place.plant("vitpose/paddle_net.py", *FAULT)
    out = place.run(script)
    assert out.count("FAILED !!!") >= 1 and "SUCCESS !!!" not in out
    assert in_order(
        out, ["FAILED !!!", "Forward Stage", r"\*\*\* HERE \*\*\*", r"paddle_net\.py: \d+", r"torch_net\.py: \d+"]
    )


def test_vitpose_with_another_loss(torch_paddle: None, place: Place) -> None:
    place.plant("vitpose/paddle_net.py", "        return loss / joints\n", "        return loss / joints * 0.5\n")
    out = place.run("padiff_vitpose_2_loss")
    assert "FAILED !!!" in out and "SUCCESS !!!" not in out and "loss" in out.lower()
    assert place.run("padiff_vitpose_1_forward").count("SUCCESS !!!") == 2


def test_vitpose_with_another_optimizer(torch_paddle: None, place: Place) -> None:
    place.plant("padiff_vitpose_3_multi_step_steps.py", "learning_rate=0.01", "learning_rate=0.02")
    out = place.run("padiff_vitpose_3_multi_step_steps")
    assert "FAILED !!!" in out and "SUCCESS !!!" not in out
    assert "optimizer" in out.lower()


# -- PaDiff 0.3 --------------------------------------------------------------------------------------------------------


def dumped(place: Path) -> tuple[list[dict[str, object]], list[Path]]:
    """The json files of a dump, and the arrays that lie with them."""
    return [json.loads(p.read_text()) for p in sorted(place.rglob("*.json"))], sorted(place.rglob("*.npy"))


@pytest.mark.parametrize(
    "script", ["padiff_interfaces_1_create_model", "padiff_interfaces_2_run", "padiff_interfaces_7_model"]
)
def test_a_proxy_of_a_model(torch_paddle: None, place: Place, script: str) -> None:
    out = place.run(script)
    assert ("[100, 100]" in out) == ("7_" in script)


def test_dumps_every_so_many_steps(torch_paddle: None, place: Place) -> None:
    place.run("padiff_interfaces_3_try_dump")
    found, arrays = dumped(place.path / "tried")
    assert found and arrays and all(np.load(a).size for a in arrays)
    place.plant("padiff_interfaces_3_try_dump.py", "per_step=2", "per_step=9")
    shutil.rmtree(place.path / "tried")
    place.run("padiff_interfaces_3_try_dump")
    assert not (place.path / "tried").exists() or not dumped(place.path / "tried")[1]


def test_dumps_of_ones_own_choice(torch_paddle: None, place: Place) -> None:
    place.run("padiff_interfaces_4_dump")
    for step in range(4):
        found, arrays = dumped(place.path / "dumped" / f"step_{step}")
        assert len(found) >= 3 and len(arrays) >= 4


def test_lists_choose_what_is_dumped(torch_paddle: None, place: Place) -> None:
    place.run("padiff_interfaces_5_lists")
    sizes = {name: len(dumped(place.path / "lists" / name)[1]) for name in ("everything", "black", "white")}
    assert sizes["everything"] > sizes["black"] >= sizes["white"] > 0


def test_a_layer_map_pairs_what_is_called_in_another_order(torch_paddle: None, place: Place) -> None:
    out = place.run("padiff_interfaces_6_layer_map")
    assert out.count("True") >= 2 and "False" not in out
    place.plant(
        "padiff_interfaces_6_layer_map.py",
        "[model1.model.linear1, model1.model.linear2]",
        "[model1.model.linear2, model1.model.linear1]",
    )
    assert "False" in place.run("padiff_interfaces_6_layer_map") or "FAILED" in out


def test_offline_comparison(torch_paddle: None, place: Place) -> None:
    out = place.run("padiff_interfaces_8_check")
    assert in_order(out, [f"{name} True" for name in ("report", "params", "weights", "grads")])
    place.plant(
        "padiff_interfaces_8_check.py",
        "model(inputs).mean())",
        "model(inputs).mean() * (1.0 if model is base else 1.5))",
    )
    out = place.run("padiff_interfaces_8_check")
    assert in_order(out, ["report False", "params False", "weights True", "grads False"])


def test_auto_diff_of_0_3(torch_paddle: None, place: Place) -> None:
    out = place.run("padiff_interfaces_9_auto_diff")
    assert "SUCCESS !!!" in out and "FAILED" not in out
    place.plant(
        "padiff_interfaces_9_auto_diff.py",
        "      self.linear1 = paddle.nn.Linear(100, 10)\n  def forward(self, x):\n      x = self.linear1(x)\n",
        "      self.linear1 = paddle.nn.Linear(100, 10)\n  def forward(self, x):\n      x = self.linear1(x) * 1.01\n",
    )
    out = place.run("padiff_interfaces_9_auto_diff")
    assert "FAILED" in out and "SUCCESS" not in out


def test_assign_weight_of_0_3(torch_paddle: None, place: Place) -> None:
    assert "Assign weight success !!!" in place.run("padiff_interfaces_10_assign_weight")
    place.plant("padiff_interfaces_10_assign_weight.py", "paddle.nn.Linear(100, 10)", "paddle.nn.Linear(100, 11)")
    out = place.run("padiff_interfaces_10_assign_weight")
    assert "Assign weight Failed !!!" in out and "success" not in out


# -- TroubleShooter ----------------------------------------------------------------------------------------------------

MAPPING = [
    ("NN_Conv2d_0", "NN_Conv2d_0"),
    ("Functional_clip_0", "Torch_clip_0"),
    ("NN_BatchNorm2d_0", "NN_BatchNorm2d_0"),
    ("NN_ReLU_0", "NN_ReLU_0"),
    ("Tensor_reshape_0", "Tensor_reshape_0"),
    ("NN_Dense_0", "NN_Linear_0"),
    ("NN_ReLU_1", "NN_ReLU_1"),
]


def table(path: Path) -> list[list[str]]:
    return [row for row in csv.reader(path.read_text().splitlines()) if row]


def troubleshooter(place: Place) -> str:
    place.run("troubleshooter_api_compare_1_torch")
    place.run("troubleshooter_api_compare_2_mindspore")
    return place.run("troubleshooter_api_compare_3_compare")


def test_troubleshooter_as_it_stands(torch_mindspore: None, place: Place) -> None:
    out = troubleshooter(place)
    assert in_order(
        out,
        [
            "The APIs mapping results of the two frameworks",
            r"ORIGIN NET \(mindspore\)",
            r"TARGET NET \(pytorch\)",
            "The forward comparison results",
            "The backward comparison results",
        ],
    )
    results = place.path / "compare_result"
    rows = table(results / "ts_api_mapping.csv")
    assert rows[0] == ["ORIGIN NET (mindspore)", "TARGET NET (pytorch)"]
    assert [tuple(row) for row in rows[1:]][: len(MAPPING)] == MAPPING
    forward = table(results / "ts_api_forward_compare.csv")
    assert forward[0][2:] == [
        "shape of orig",
        "shape of target",
        "result of allclose",
        "ratio of allclose",
        "cosine similarity",
        "mean & max diffs",
    ]
    assert forward[1][:2] == ["NN_Conv2d_0_forward_input.0.npy", "NN_Conv2d_0_forward_input.0.npy"]
    assert all(row[4] == "True" for row in forward[1:15])
    backward = table(results / "ts_api_backward_compare.csv")
    assert backward[1][0] == "NN_ReLU_1_backward_input.npy" and all(row[4] == "True" for row in backward[1:8])
    for side, framework in (("torch_dump", "torch"), ("ms_dump", "mindspore")):
        files = {p.name for p in (place.path / side / "rank0" / f"{framework}_api_dump").rglob("*.npy")}
        assert {
            "NN_Conv2d_0_forward_input.0.npy",
            "NN_Conv2d_0_forward_output.npy",
            "NN_Conv2d_0_backward_input.npy",
        } <= files


def test_troubleshooter_with_a_fault(torch_mindspore: None, place: Place) -> None:
    place.plant("troubleshooter_api_compare_2_mindspore.py", "ms.Tensor(0.5, ms.float32)", "ms.Tensor(0.4, ms.float32)")
    troubleshooter(place)
    forward = {row[0]: row[4] for row in table(place.path / "compare_result" / "ts_api_forward_compare.csv")}
    assert forward["NN_Conv2d_0_forward_output.npy"] == "True"
    assert forward["Functional_clip_0_forward_input.0.npy"] == "True"
    assert forward["Functional_clip_0_forward_output.npy"] == "False"


def test_every_script_is_run() -> None:
    text = Path(__file__).read_text()
    scripts = {p.stem for p in SCRIPTS.glob("*.py")}
    assert len(scripts) > 20 and not [name for name in scripts if name not in text and "prepare" not in name]
