"""What a capture is told to record: call by call, with or without the ops of layers, and to a writer of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import MemoryWriter, Record, Trace, TraceWriter, capture
from twinscope.adapters._registry import by_name
from twinscope.errors import OptionError
from twinscope.records import OUTSIDE, Kind, Phase

pytestmark = pytest.mark.filterwarnings("ignore")


def _net(framework: str) -> tuple[Any, Any, Any]:
    """A network with a layer, a function of its own that is handed a weight, and a loss of each sort."""
    adapter = by_name(framework)
    adapter.seed(0)
    net: Any
    if framework == "torch":
        import torch
        from torch import nn

        class TorchNet(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x: Any) -> Any:
                return torch.matmul(self.layer(x), self.layer.weight)

        net, layer, loss = TorchNet(), nn.MSELoss(), nn.functional.mse_loss
    elif framework == "paddle":
        import paddle
        from paddle import nn as pnn

        class PaddleNet(pnn.Layer):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = pnn.Linear(4, 4)

            def forward(self, x: Any) -> Any:
                return paddle.matmul(self.layer(x), self.layer.weight)

        net, layer, loss = PaddleNet(), pnn.MSELoss(), pnn.functional.mse_loss
    else:
        import mindspore as ms
        from mindspore import nn as mnn

        class MindSporeNet(mnn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.layer = mnn.Dense(4, 4)

            def construct(self, x: Any) -> Any:
                return ms.ops.matmul(self.layer(x), self.layer.weight)

        net, layer, loss = MindSporeNet(), mnn.MSELoss(), ms.ops.mse_loss
    x = adapter.from_numpy(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    return net, x, (layer, loss)


def _ops(trace: Trace) -> list[Record]:
    return [r for r in trace if r.kind is Kind.OP and r.phase is Phase.FORWARD]


def test_only_what_is_chosen_is_recorded(framework: str) -> None:
    net, x, _ = _net(framework)
    asked: list[tuple[int, str, bool]] = []

    def choose(call_id: int, kind: Kind, type: str, path: str, builtin: bool) -> bool:
        asked.append((call_id, str(kind), builtin))
        return kind is Kind.MODULE and builtin

    with capture(net, choose=choose) as run:
        net(x)
    calls = [r for r in run.trace if r.phase is Phase.FORWARD]
    assert [r.path for r in calls] == ["layer"]
    assert calls[0].call_id in [c for c, kind, builtin in asked if kind == "module" and builtin]
    assert any(kind == "op" and not builtin for _, kind, builtin in asked)
    with capture(net) as run:
        net(x)
    assert len([r for r in run.trace if r.phase is Phase.FORWARD]) > 1, "without a choice everything is"


def test_ops_of_layers_may_be_left_out(framework: str) -> None:
    net, x, _ = _net(framework)
    with capture(net) as run:
        net(x)
    assert {r.builtin for r in _ops(run.trace)} == {True, False}
    with capture(net, layer_ops=False) as run:
        net(x)
    assert {r.builtin for r in _ops(run.trace)} == {False}
    with pytest.raises(OptionError, match="layer_ops='no' is neither True nor False"):
        capture(net, layer_ops="no")


def test_a_loss_in_a_layer_is_told_from_one_of_the_users_own(framework: str) -> None:
    net, x, losses = _net(framework)
    found = []
    for loss in losses:
        with capture(net) as run:
            loss(net(x), x)
        found.append({r.builtin for r in _ops(run.trace) if r.path == OUTSIDE})
    assert found == [{True}, {False}]


def test_weights_are_measured_where_ops_are_handed_them(framework: str) -> None:
    net, x, _ = _net(framework)
    for weights in ("used", "never"):
        with capture(net, weights=weights, keep="tensors", layer_ops=False) as run:
            net(x)
        assert not [r for r in run.trace if r.phase is Phase.WEIGHT]
        [slot] = [s for r in _ops(run.trace) for s in r.slots if s.param == "layer.weight"]
        assert (slot.stats is not None, slot.kept) == ((True, True) if weights == "used" else (False, False))


def test_records_and_tensors_go_to_a_writer_of_ones_own(framework: str, tmp_path: Path) -> None:
    net, x, _ = _net(framework)
    lines: list[str] = []

    class Writer(TraceWriter):
        def record(self, record: Record) -> None:
            lines.append(record.path)
            super().record(record)

    with capture(net, writer=lambda manifest: Writer(tmp_path / "run", manifest), keep="tensors") as run:
        net(x)
        run.step()
        assert lines, "while the run goes on"
    trace = Trace.open(tmp_path / "run")
    trace.verify()
    assert [r.path for r in trace] == lines and trace.manifest.complete
    with capture(net, writer=MemoryWriter) as run:
        net(x)
    assert len(run.trace.records) > 0


def test_who_opened_a_capture_without_a_block_is_told_that_the_model_raised(framework: str) -> None:
    net, x, _ = _net(framework)
    before = {name: value for name, value in vars(net).items()}
    told: list[str] = []

    def failed() -> None:
        told.append("failed")
        run.__exit__(None, None, None)

    run = capture(net, failed=failed)
    run.__enter__()
    net(x)
    assert not told
    with pytest.raises(Exception):  # noqa: B017 - each framework has its own
        net(None)
    assert told == ["failed"]
    assert vars(net).keys() == before.keys()
    assert any(r.failed for r in run.trace)
    number = len(run.trace.records)
    net(x)
    assert len(run.trace.records) == number
