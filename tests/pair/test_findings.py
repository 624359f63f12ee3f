"""Findings as people and programs read them: the place, the cause, the numbers, the line to change."""

from __future__ import annotations

import csv
import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Result, Verdict, align
from twinscope.report.files import write_csv, write_json
from twinscope.report.terminal import render

pytestmark = pytest.mark.filterwarnings("ignore")

X = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")


def network(framework: str, eps: float = 1e-5) -> Any:
    nn = importlib.import_module(f"{framework}.nn")
    base = {"torch": "Module", "paddle": "Layer", "mindspore": "Cell"}[framework]
    word = "eps" if framework == "torch" else "epsilon"

    class Net(getattr(nn, base)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = (nn.Dense if framework == "mindspore" else nn.Linear)(16, 16)
            self.ln1 = nn.LayerNorm([16], **{word: eps})
            self.ln2 = nn.LayerNorm([16], **{word: 1e-5})
            self.head = (nn.Dense if framework == "mindspore" else nn.Linear)(16, 16)

        def forward(self, x: Any) -> Any:
            return self.head(self.ln2(self.ln1(self.fc(x))))  # the line

        construct = forward

    return Net()


def aligned(pair: tuple[str, str], eps: float) -> Result:
    return align(network(pair[0]), network(pair[1], eps), X)


def test_a_finding_says_all_that_matters(pair: tuple[str, str]) -> None:
    result = aligned(pair, 1e-4)
    found = result.findings[0]
    first, second = str(found).splitlines()
    own = "eps" if pair[1] == "torch" else "epsilon"
    assert first == f"BUG  ln1 (LayerNorm): {own} 1e-05 / 0.0001"
    line = 1 + next(n for n, text in enumerate(Path(__file__).read_text().splitlines()) if text.endswith("# the line"))
    shape = rf"     rho [\de+]+; replay with {own}=1e-05: rho [0-2]\.?\d*; candidate (\S*/)?test_findings\.py:{line}"
    assert re.fullmatch(shape, second), second
    assert found.candidate == "ln1" and "eps 1e-05 / 0.0001" in str(found.cause)
    assert found.numbers["rho"] > 8 and found.alone is not None and found.alone.floor
    assert [c.proven for c in found.causes] == [True] and found.causes[0].rho is not None
    assert found.causes[0].rho < 3


def test_the_report_has_the_numbers(pair: tuple[str, str]) -> None:
    result = aligned(pair, 1e-4)
    text = render(result, width=140, unicode=True)
    rho = str(result.findings[0]).split("rho ")[1].split(";")[0]
    alone = next(line for line in text.splitlines() if line.startswith("  alone"))
    assert f"rho {rho} (1 is noise, a bug from 8)" in alone and "noise by" in text
    assert any("ln1  LayerNorm" in line and f"rho {rho}" in line for line in text.splitlines())
    assert re.search(r"times +rho", text)
    good = render(aligned(pair, 1e-5), width=140, unicode=True)
    assert "  alone" not in good and "a bug from" not in good


def test_files_have_the_numbers(pair: tuple[str, str], tmp_path: Path) -> None:
    for eps, verdict in ((1e-4, "BUG"), (1e-5, "NOISE")):
        result = aligned(pair, eps)
        read = json.loads(write_json(result, tmp_path / "result.json").read_text())
        with open(write_csv(result, tmp_path / "pairs.csv"), newline="") as file:
            rows = [r for r in csv.DictReader(file) if r["candidate"] == "ln1" and r["phase"] == "forward"]
        assert rows and {r["judged"] for r in rows} <= {verdict, "EXACT"}
        assert all(float(r["rho"]) >= 8 for r in rows) is (verdict == "BUG") and all(r["floor"] for r in rows)
        plain = [r for r in read["pairs"] if r["candidate"] == "ln1" and r["phase"] == "forward"]
        assert [float(r["rho"]) for r in rows] == [r["rho"] for r in plain]
        assert bool(read["findings"]) is (verdict == "BUG")
        if read["findings"]:
            found = read["findings"][0]
            assert found["causes"][0]["proven"] is True and found["causes"][0]["rho"] < 3 and found["floor"]


def test_a_mode_of_lower_precision_is_named(pair: tuple[str, str]) -> None:
    if pair[1] != "torch":
        pytest.skip("one is enough")
    import torch

    candidate = network("torch")
    candidate.fc.register_forward_hook(lambda m, args, out: out.to(torch.bfloat16).to(torch.float32))
    result = align(network(pair[0]), candidate, X)
    found = [f for f in result.findings if f.verdict is Verdict.PRECISION]
    assert found and found[0].to_dict()["precision"] and "bfloat16" in str(found[0]), str(result)
    assert "bfloat16" in render(result, width=120, unicode=True)
