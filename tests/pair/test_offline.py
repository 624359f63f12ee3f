"""Judging by a trace made elsewhere: the reference is gone, and what its run left behind is enough."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope import Overall, Phase, Trace, Verdict, judge_trace
from twinscope.cli import main
from twinscope.errors import MatchError, TraceError, WeightError
from twinscope.running import Inputs

pytestmark = pytest.mark.filterwarnings("ignore")

X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")


def network(framework: str, told: str = "") -> Any:
    """Two matrices and an activation; `told` names what is wrong with it."""
    nn = importlib.import_module(f"{framework}.nn")
    base = {"torch": "Module", "paddle": "Layer", "mindspore": "Cell"}[framework]
    linear = nn.Dense if framework == "mindspore" else nn.Linear
    if framework == "mindspore":
        from mindspore import ops

        act = (lambda t: ops.gelu(t, approximate="tanh")) if told == "gelu" else ops.gelu
        stop = ops.stop_gradient
    elif framework == "paddle":
        act = lambda t: nn.functional.gelu(t, approximate=told == "gelu")  # noqa: E731
        stop = lambda t: t.detach()  # noqa: E731
    else:
        act = lambda t: nn.functional.gelu(t, approximate="tanh" if told == "gelu" else "none")  # noqa: E731
        stop = lambda t: t.detach()  # noqa: E731

    def build(self: Any) -> None:
        super(cls, self).__init__()
        self.fc1 = linear(8, 16)
        self.fc2 = linear(16, 16)
        self.fc3 = linear(16, 4)

    def run(self: Any, x: Any, shift: float = 0.0) -> Any:
        h = act(self.fc1(x))
        h = self.fc2(stop(h) if told == "cut" else h)
        return self.fc3(act(h)) + shift

    forward = "construct" if framework == "mindspore" else "forward"
    cls = type("Net", (getattr(nn, base),), {"__init__": build, forward: run})
    return cls()


def recorded(framework: str, path: Path | None = None, *, backward: bool = True, keep: Any = "tensors") -> Trace:
    """A trace of the reference under a loss that the candidate knows nothing of."""
    from twinscope.adapters._registry import by_name
    from twinscope.capturing import Plan
    from twinscope.running import watch_once

    plan = Plan.parse(level="op", keep=keep, backward=backward)
    loss = (lambda out: (out * out).sum()) if backward else None
    adapter = by_name(framework)
    return watch_once(
        adapter, network(framework), Inputs(X, shift=0.5), loss, plan, 0, None if path is None else str(path)
    )


def test_a_good_port_is_the_same(pair: tuple[str, str], tmp_path: Path) -> None:
    recorded(pair[0], tmp_path / "ref")
    result = judge_trace(tmp_path / "ref", network(pair[1]))
    assert result.verdict is Overall.SAME, str(result)
    assert {p.reference.phase for p in result.pairs} >= {Phase.WEIGHT, Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT}
    assert any(p.graft is not None for p in result.pairs) and result.weights is not None


def test_a_bug_is_found_with_its_cause(pair: tuple[str, str]) -> None:
    result = judge_trace(recorded(pair[0]), network(pair[1], "gelu"))
    assert result.verdict is Overall.DIFFERENT
    found = [f for f in result.findings if f.verdict is Verdict.BUG]
    # the second is given so little that a gelu of another polynomial could be as far off
    assert {f.candidate for f in found} == {"(root) · gelu"} and found == list(result.findings), str(result)
    assert all("approximate" in str(f.cause) and "suspected" not in str(f.cause) for f in found)
    assert all(f.numbers["rho"] > 8 for f in found)


def test_a_bug_of_the_backward_pass_is_found(pair: tuple[str, str]) -> None:
    result = judge_trace(recorded(pair[0]), network(pair[1], "cut"))
    assert result.verdict is Overall.DIFFERENT and all(
        p.verdict is not Verdict.BUG for p in result.pairs if p.reference.phase is Phase.FORWARD
    )
    assert judge_trace(recorded(pair[0]), network(pair[1], "cut"), backward=False).verdict is Overall.SAME


def test_without_a_recorded_backward_pass_only_the_forward_is_judged(pair: tuple[str, str]) -> None:
    result = judge_trace(recorded(pair[0], backward=False), network(pair[1]))
    assert result.verdict is Overall.SAME and any("forward only" in n for n in result.notes)


def test_weights_left_alone_differ(pair: tuple[str, str]) -> None:
    assert judge_trace(recorded(pair[0]), network(pair[1]), weights=False).verdict is Overall.DIFFERENT


def test_a_trace_without_tensors_is_refused_clearly(pair: tuple[str, str]) -> None:
    bare = recorded(pair[0], keep="stats")
    with pytest.raises(TraceError, match=r"does not hold the values of the model's input in\.0") as error:
        judge_trace(bare, network(pair[1]))
    assert 'keep="tensors"' in str(error.value.hint)
    with pytest.raises(WeightError, match="does not hold the values of the weights") as refused:
        judge_trace(bare, network(pair[1]), X)
    assert 'keep="tensors"' in str(refused.value.hint)


def test_a_trace_of_a_part_is_refused_clearly(pair: tuple[str, str]) -> None:
    whole = recorded(pair[0])
    part = Trace(whole.manifest, [r for r in whole.records if r.path])
    with pytest.raises(TraceError, match="holds no call of the model itself"):
        judge_trace(part, network(pair[1]))
    with pytest.raises(TraceError, match="holds no records"):
        judge_trace(Trace(whole.manifest, []), network(pair[1]))


def test_a_misspelt_option_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(TypeError, match="atoll"):
        judge_trace(recorded(pair[0]), network(pair[1]), atoll=1)  # type: ignore[call-arg]
    with pytest.raises(MatchError, match="no module or parameter 'fc9'"):
        judge_trace(recorded(pair[0]), network(pair[1]), mapping={"fc9": "fc1"})


CANDIDATE = """
    import sys
    sys.path[:0] = [{tests!r}]
    from pair.test_offline import network

    def build():
        assert {other!r} not in sys.modules, "the reference's framework is here"
        return network({framework!r})

    def build_wrong():
        return network({framework!r}, "gelu")
"""


def test_the_command_needs_no_other_framework(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("it is the same framework")
    recorded(pair[0], tmp_path / "ref")
    code = CANDIDATE.format(tests=str(Path(__file__).parent.parent), other=pair[0], framework=pair[1])
    (tmp_path / "cand.py").write_text(textwrap.dedent(code))
    source = Path(twinscope.__file__).parent.parent
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parent.parent)])}
    for name, status, verdict in (("build", 0, "SAME"), ("build_wrong", 1, "DIFFERENT")):
        command = [sys.executable, "-m", "twinscope.cli", "judge", "ref", "--candidate", f"cand.py:{name}", "-q"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=told)
        assert done.returncode == status and done.stdout.startswith(verdict), done.stdout + done.stderr


def test_mistakes_on_the_command_line(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(tmp_path / "nowhere"), "--candidate", "cand.py:build"]) == 2
    assert "nowhere" in capsys.readouterr().err
    recorded(pair[0], tmp_path / "ref")
    assert main(["judge", str(tmp_path / "ref"), "--candidate", "cand.py:build"]) == 2
    assert "there is no file cand.py" in capsys.readouterr().err
    (tmp_path / "cand.py").write_text("def build():\n    raise ValueError('no model today')\n")
    assert main(["judge", str(tmp_path / "ref"), "--candidate", f"{tmp_path}/cand.py"]) == 2
    assert "no model today" in capsys.readouterr().err
