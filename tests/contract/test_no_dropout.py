"""`no_dropout` is proven, not announced: outputs in training mode are those without dropout, in every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope.adapters._registry import by_name

pytestmark = pytest.mark.filterwarnings("ignore")


def _torch() -> dict[str, tuple[Any, Callable[[Any], Any], tuple[int, ...]]]:
    import torch
    from torch import nn
    from torch.nn.functional import dropout

    class Functions(nn.Module):
        def forward(self, x: Any) -> Any:
            y = dropout(x, 0.5) + nn.functional.dropout2d(x[None], p=0.4)[0] + torch.dropout(x, 0.3, True)
            y = y + nn.functional.alpha_dropout(x, 0.5, training=True)
            return y + nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 6, 3, dropout=0.5, batch_first=True)
            self.rnn = nn.RNN(6, 6, 2, dropout=0.5, batch_first=True)

        def forward(self, x: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 3]), batch_first=True)
            return self.rnn(self.lstm(x)[0])[0].sum() + self.lstm(packed)[0].data.sum()

    layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.AlphaDropout(0.5), nn.Dropout1d(0.5), nn.BatchNorm1d(5))
    return {
        "layers": (layers, layers, (3, 5, 6)),
        "functions": (f := Functions(), f, (3, 5, 6)),
        "recurrent": (r := Recurrent(), r, (3, 5, 6)),
        "attention": (t := nn.TransformerEncoderLayer(6, 2, 12, 0.5, batch_first=True), t, (3, 5, 6)),
    }


def _paddle() -> dict[str, tuple[Any, Callable[[Any], Any], tuple[int, ...]]]:
    from paddle import nn
    from paddle.nn.functional import dropout

    class Functions(nn.Layer):
        def forward(self, x: Any) -> Any:
            y = dropout(x, 0.5) + nn.functional.dropout(x, 0.4, axis=1) + nn.functional.alpha_dropout(x, 0.5)
            return y + nn.functional.dropout2d(x[None], p=0.4)[0]

    layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.AlphaDropout(0.5), nn.BatchNorm1D(5))
    lstm = nn.LSTM(6, 6, 3, dropout=0.5)
    return {
        "layers": (layers, layers, (3, 5, 6)),
        "functions": (f := Functions(), f, (3, 5, 6)),
        "recurrent": (lstm, lambda x: lstm(x)[0], (3, 5, 6)),
        "attention": (t := nn.TransformerEncoderLayer(6, 2, 12, 0.5), t, (3, 5, 6)),
    }


def _mindspore() -> dict[str, tuple[Any, Callable[[Any], Any], tuple[int, ...]]]:
    from mindspore import nn, ops
    from mindspore.ops import dropout

    class Functions(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.drop = ops.Dropout(keep_prob=0.5)

        def construct(self, x: Any) -> Any:
            y = dropout(x, 0.5) + ops.dropout2d(x[None], 0.4)[0] + ops.dropout1d(x, 0.4)
            return y + self.drop(x)[0]

    layers = nn.SequentialCell(nn.Dropout(p=0.5), nn.Dense(6, 6), nn.Dropout1d(p=0.5))
    lstm = nn.LSTM(6, 6, 3, dropout=0.5, batch_first=True)
    lstm.set_train()
    attention = nn.TransformerEncoderLayer(6, 2, 12, 0.5, batch_first=True)
    layers.set_train()
    attention.set_train()
    return {
        "layers": (layers, layers, (3, 5, 6)),
        "functions": (f := Functions(), f, (3, 5, 6)),
        "recurrent": (lstm, lambda x: lstm(x)[0], (3, 5, 6)),
        "attention": (attention, attention, (3, 5, 6)),
    }


MAKERS = {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "watched"])
@pytest.mark.parametrize("case", ["layers", "functions", "recurrent", "attention"])
def test_nothing_is_dropped_and_everything_is_put_back(framework: str, case: str, watched: bool) -> None:
    adapter = by_name(framework)
    adapter.seed(3)
    model, call, shape = MAKERS[framework]()[case]
    x = adapter.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))

    def run() -> Any:
        if watched:
            with twinscope.capture(model, weights="never"):
                return adapter.to_numpy(call(x)).copy()
        return adapter.to_numpy(call(x)).copy()

    adapter.seed(1)
    assert not np.array_equal(run(), run()), "the network does drop"
    with twinscope.no_dropout(model):
        adapter.seed(1)
        first = run()
        adapter.seed(2)
        second = run()
    assert np.array_equal(first, second)
    if case in ("recurrent", "attention"):
        with adapter.evaluating(model):
            np.testing.assert_allclose(first, adapter.to_numpy(call(x)), rtol=1e-4, atol=1e-5)
    adapter.seed(1)
    assert not np.array_equal(run(), run()), "dropout is back"
    with pytest.raises(ZeroDivisionError), twinscope.no_dropout(model):
        raise ZeroDivisionError
    assert not np.array_equal(run(), run()), "dropout is back after an exception"
