"""Every default and every name in lint's table, held against the framework that is installed.

A layer is made with the fewest arguments that its class takes. A release that changes a default, or takes a name away,
fails here, and the table is to be changed.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest

from twinscope.adapters._registry import by_name
from twinscope.explain.neutral import is_default, neutral
from twinscope.explain.spelling import default_written, shown
from twinscope.explain.table import AS_KERNEL, IMPLIED, TABLE, UNSET, Setting, flavour_of
from twinscope.records import ModuleInfo

pytestmark = pytest.mark.filterwarnings("ignore")


def _plain(*named: str, arguments: str = "") -> dict[str, list[str]]:
    """Kinds whose classes all take the same arguments."""
    return {kind: [f"{cls}({arguments})"] for kind, cls in (name.split(":") for name in named)}


#: By flavour and kind, the classes with the fewest arguments. A kind that is not listed is not made by that flavour.
SAMPLES: dict[str, dict[str, list[str]]] = {
    "torch": {
        "linear": ["Linear(4, 4)"],
        "bilinear": ["Bilinear(2, 3, 4)"],
        **{f"conv{d}d": [f"Conv{d}d(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"conv_transpose{d}d": [f"ConvTranspose{d}d(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"batch_norm{d}d": [f"BatchNorm{d}d(4)"] for d in (1, 2, 3)},
        "sync_batch_norm": ["SyncBatchNorm(4)"],
        **{f"instance_norm{d}d": [f"InstanceNorm{d}d(4)"] for d in (1, 2, 3)},
        "layer_norm": ["LayerNorm(8)"],
        "group_norm": ["GroupNorm(2, 4)"],
        "rms_norm": ["RMSNorm(8)"],
        "local_response_norm": ["LocalResponseNorm(2)"],
        "embedding": ["Embedding(5, 4)"],
        **_plain("prelu:PReLU", "leaky_relu:LeakyReLU", "elu:ELU"),
        **_plain("celu:CELU", "selu:SELU", "gelu:GELU", "hardtanh:Hardtanh"),
        **_plain("softplus:Softplus", "softmax:Softmax", "log_softmax:LogSoftmax"),
        **_plain("flatten:Flatten", "dropout:Dropout", "alpha_dropout:AlphaDropout"),
        **{f"dropout{d}d": [f"Dropout{d}d()"] for d in (1, 2, 3)},
        **{f"max_pool{d}d": [f"MaxPool{d}d(2)"] for d in (1, 2, 3)},
        **{f"avg_pool{d}d": [f"AvgPool{d}d(2)"] for d in (1, 2, 3)},
        "multihead_attention": ["MultiheadAttention(8, 2)"],
        "transformer_encoder_layer": ["TransformerEncoderLayer(8, 2)"],
        "transformer_decoder_layer": ["TransformerDecoderLayer(8, 2)"],
        **_plain("lstm:LSTM", "gru:GRU", "rnn:RNN", arguments="4, 4"),
        **_plain("lstm_cell:LSTMCell", "gru_cell:GRUCell", "rnn_cell:RNNCell", arguments="4, 4"),
        "upsample": ["Upsample()"],
        "pad": ["ConstantPad2d(1, 0.0)"],
        "fold": ["Fold(4, 2)"],
        "unfold": ["Unfold(2)"],
        "cosine_similarity": ["CosineSimilarity()"],
        **_plain("mse_loss:MSELoss", "l1_loss:L1Loss", "smooth_l1_loss:SmoothL1Loss"),
        **_plain("cross_entropy_loss:CrossEntropyLoss", "nll_loss:NLLLoss"),
        **_plain("bce_loss:BCELoss", "bce_with_logits_loss:BCEWithLogitsLoss"),
        "kl_div_loss": ["KLDivLoss()"],
    },
    "paddle": {
        "linear": ["Linear(4, 4)"],
        "bilinear": ["Bilinear(2, 3, 4)"],
        **{f"conv{d}d": [f"Conv{d}D(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"conv_transpose{d}d": [f"Conv{d}DTranspose(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"batch_norm{d}d": [f"BatchNorm{d}D(4)"] for d in (1, 2, 3)},
        "sync_batch_norm": ["SyncBatchNorm(4)"],
        **{f"instance_norm{d}d": [f"InstanceNorm{d}D(4)"] for d in (1, 2, 3)},
        "layer_norm": ["LayerNorm(8)"],
        "group_norm": ["GroupNorm(2, 4)"],
        "local_response_norm": ["LocalResponseNorm(2)"],
        "embedding": ["Embedding(5, 4)"],
        **_plain("prelu:PReLU", "leaky_relu:LeakyReLU", "elu:ELU"),
        **_plain("celu:CELU", "selu:SELU", "gelu:GELU", "hardtanh:Hardtanh"),
        **_plain("softplus:Softplus", "softmax:Softmax", "log_softmax:LogSoftmax"),
        **_plain("flatten:Flatten", "dropout:Dropout", "alpha_dropout:AlphaDropout"),
        **{f"dropout{d}d": [f"Dropout{d}D()"] for d in (2, 3)},
        **{f"max_pool{d}d": [f"MaxPool{d}D(2)"] for d in (1, 2, 3)},
        **{f"avg_pool{d}d": [f"AvgPool{d}D(2)"] for d in (1, 2, 3)},
        "multihead_attention": ["MultiHeadAttention(8, 2)"],
        "transformer_encoder_layer": ["TransformerEncoderLayer(8, 2, 16)"],
        "transformer_decoder_layer": ["TransformerDecoderLayer(8, 2, 16)"],
        **_plain("lstm:LSTM", "gru:GRU", "rnn:SimpleRNN", arguments="4, 4"),
        **_plain("lstm_cell:LSTMCell", "gru_cell:GRUCell", arguments="4, 4"),
        "rnn_cell": ["SimpleRNNCell(4, 4)"],
        "upsample": ["Upsample()"],
        "pad": ["Pad1D(1)", "Pad2D(1)", "Pad3D(1)"],
        "fold": ["Fold([4, 4], 2)"],
        "unfold": ["Unfold(2)"],
        "cosine_similarity": ["CosineSimilarity()"],
        **_plain("mse_loss:MSELoss", "l1_loss:L1Loss", "smooth_l1_loss:SmoothL1Loss"),
        **_plain("cross_entropy_loss:CrossEntropyLoss", "nll_loss:NLLLoss"),
        **_plain("bce_loss:BCELoss", "bce_with_logits_loss:BCEWithLogitsLoss"),
        "kl_div_loss": ["KLDivLoss()"],
    },
    "mindspore": {
        "linear": ["Dense(4, 4)"],
        "bilinear": ["BiDense(2, 3, 4)"],
        **{f"conv{d}d": [f"Conv{d}d(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"conv_transpose{d}d": [f"Conv{d}dTranspose(4, 4, 3)"] for d in (1, 2, 3)},
        **{f"batch_norm{d}d": [f"BatchNorm{d}d(4)"] for d in (1, 2, 3)},
        "sync_batch_norm": ["SyncBatchNorm(4)"],
        **{f"instance_norm{d}d": [f"InstanceNorm{d}d(4)"] for d in (1, 2, 3)},
        "layer_norm": ["LayerNorm((8,))"],
        "group_norm": ["GroupNorm(2, 4)"],
        "local_response_norm": ["LRN()"],
        "embedding": ["Embedding(5, 4)"],
        **_plain("leaky_relu:LeakyReLU", "elu:ELU", "celu:CELU", "selu:SeLU"),
        **_plain("gelu:GELU", "hardtanh:Hardtanh", "softmax:Softmax"),
        **_plain("log_softmax:LogSoftmax", "flatten:Flatten", "dropout:Dropout"),
        **{f"dropout{d}d": [f"Dropout{d}d()"] for d in (1, 2, 3)},
        **{f"max_pool{d}d": [f"MaxPool{d}d()"] for d in (1, 2, 3)},
        **{f"avg_pool{d}d": [f"AvgPool{d}d()"] for d in (1, 2, 3)},
        "multihead_attention": ["MultiheadAttention(8, 2)"],
        "transformer_encoder_layer": ["TransformerEncoderLayer(8, 2)"],
        "transformer_decoder_layer": ["TransformerDecoderLayer(8, 2)"],
        **_plain("lstm:LSTM", "gru:GRU", "rnn:RNN", arguments="4, 4"),
        **_plain("lstm_cell:LSTMCell", "gru_cell:GRUCell", "rnn_cell:RNNCell", arguments="4, 4"),
        "upsample": ["Upsample((4, 4))"],
        "pad": ["Pad(((0, 0), (1, 1)))"],
        **_plain("mse_loss:MSELoss", "l1_loss:L1Loss", "smooth_l1_loss:SmoothL1Loss"),
        **_plain("cross_entropy_loss:CrossEntropyLoss", "nll_loss:NLLLoss"),
        **_plain("bce_loss:BCELoss", "bce_with_logits_loss:BCEWithLogitsLoss"),
        "kl_div_loss": ["KLDivLoss()"],
    },
    "mint": {
        "linear": ["Linear(4, 4)"],
        **{f"conv{d}d": [f"Conv{d}d(4, 4, 3)"] for d in (1, 2, 3)},
        "conv_transpose2d": ["ConvTranspose2d(4, 4, 3)"],
        **{f"batch_norm{d}d": [f"BatchNorm{d}d(4)"] for d in (1, 2, 3)},
        "layer_norm": ["LayerNorm(8)"],
        "group_norm": ["GroupNorm(2, 4)"],
        "embedding": ["Embedding(5, 4)"],
        **_plain("elu:ELU", "selu:SELU", "gelu:GELU", "hardtanh:Hardtanh"),
        **_plain("softmax:Softmax", "log_softmax:LogSoftmax", "flatten:Flatten"),
        **_plain("dropout:Dropout", "dropout2d:Dropout2d"),
        "max_pool2d": ["MaxPool2d(2)"],
        **{f"avg_pool{d}d": [f"AvgPool{d}d(2)"] for d in (1, 2, 3)},
        "upsample": ["Upsample(None, 2)"],
        "pad": ["ConstantPad2d(1, 0.0)"],
        "fold": ["Fold(4, 2)"],
        "unfold": ["Unfold(2)"],
        **_plain("mse_loss:MSELoss", "l1_loss:L1Loss", "smooth_l1_loss:SmoothL1Loss"),
        **_plain("cross_entropy_loss:CrossEntropyLoss", "nll_loss:NLLLoss"),
        "kl_div_loss": ["KLDivLoss()"],
    },
}  # fmt: skip

#: Names that stand for a value of another kind, whose defaults are checked by what the layer then is.
_OTHER_WORDS = {"data_format", "use_global_stats", "use_batch_statistics", "is_huber"}


def made(framework: str) -> Iterator[tuple[str, str, Any, ModuleInfo]]:
    """Every sample: flavour, kind, the layer, and what the adapter says of it."""
    flavours = {"torch": ["torch"], "paddle": ["paddle"], "mindspore": ["mindspore", "mint"]}[framework]
    for flavour in flavours:
        nn = importlib.import_module("mindspore.mint.nn" if flavour == "mint" else f"{framework}.nn")
        for kind, texts in SAMPLES[flavour].items():
            for text in texts:
                layer = eval(text, dict(vars(nn)))
                yield flavour, kind, layer, by_name(framework).modules(layer)[0][0]


#: Options that a class does not have although its kind does, and defaults that are split over two options.
_EXCEPT = {
    ("SyncBatchNorm", "statistics"),
    ("Dropout", "p"),  # of MindSpore, with keep_prob
    *((name, "mode") for name in ("ConstantPad2d", "Pad")),
    ("Pad", "value"),
}


def test_a_sample_is_what_it_is_said_to_be(framework: str) -> None:
    wrong = [
        f"{info.type}: {info.kind} {flavour_of(framework, info)}"
        for flavour, kind, _, info in made(framework)
        if info.kind != kind or (flavour_of(framework, info) != flavour)
    ]
    assert not wrong, wrong


def test_defaults_are_those_of_the_table(framework: str) -> None:
    wrong, checked = [], 0
    for flavour, kind, _, info in made(framework):
        settings = neutral(framework, info)
        for setting in TABLE[kind]:
            default = setting.defaults.get(flavour, UNSET)
            if default is UNSET or setting.name == "huber":  # where delta is 1 it is none, whatever is_huber says
                continue
            if setting.name not in settings:
                if setting.name == "count_include_pad":  # where nothing is padded, MindSpore does not keep it
                    continue
                wrong.append(f"{info.type}: {setting.name} cannot be read")
                continue
            checked += 1
            if is_default(setting, flavour, settings) is not True and not _told(info, setting):
                wrong.append(f"{info.type}: {setting.name} is {settings[setting.name]}, not {default}")
    assert not wrong, "\n".join(wrong)
    assert checked > 100


def _told(info: ModuleInfo, setting: Setting) -> bool:
    """What the sample had to be told."""
    own = info.type.rsplit(".", 1)[-1]
    return (own, setting.name) in {("UpsampleExt", "scale_factor"), ("Upsample", "size")}


def test_names_and_defaults_are_those_of_the_signatures(framework: str) -> None:
    wrong, checked = [], 0
    for flavour, kind, layer, info in made(framework):
        parameters = _parameters(type(layer))
        if parameters is None:
            continue
        settings = neutral(framework, info)
        for setting in TABLE[kind]:
            name = setting.own.get(flavour)
            if name is None or setting.defaults.get(flavour, UNSET) == AS_KERNEL:
                continue
            if (type(layer).__name__, setting.name) in _EXCEPT and not (flavour != "mindspore" and name == "p"):
                continue
            if name not in parameters:
                wrong.append(f"{info.type} takes no {name}")
                continue
            given = parameters[name].default
            said = default_written(flavour, kind, setting, settings)
            if given is inspect.Parameter.empty or said is None or name in _OTHER_WORDS:
                continue
            checked += 1
            if not _same(said, name, given):
                wrong.append(f"{info.type}: {name}={given!r}, the table says {said}")
    assert not wrong, "\n".join(wrong)
    assert checked > 50


def _parameters(cls: type) -> Any:
    found = inspect.signature(cls.__init__).parameters
    hidden = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found.values())
    return None if hidden else found  # LSTM(*args, **kwargs): its defaults are checked by what it then is


def _same(said: str, name: str, given: Any) -> bool:
    given = getattr(given, "__name__", given)
    if said == f"{name}={shown(given)}":
        return True
    try:
        return math.isclose(float(said.removeprefix(f"{name}=")), float(given))
    except (TypeError, ValueError):
        return given is None and said == f"{name}=False"  # align_corners=None is False


def test_every_kind_of_the_table_is_sampled() -> None:
    without_defaults = {
        k for k, settings in TABLE.items() if all(v is UNSET for s in settings for v in s.defaults.values())
    }
    sampled = {kind for kinds in SAMPLES.values() for kind in kinds}
    adaptive = {kind for kind in TABLE if kind.startswith("adaptive")}
    assert set(TABLE) - sampled - without_defaults - adaptive - {"batch_norm"} == set()


def test_what_goes_without_saying(framework: str) -> None:
    for (owner, name), settings in IMPLIED.items():
        if owner == framework:
            nn = importlib.import_module(f"{framework}.nn")
            layer = getattr(nn, name)(scale_factor=2)
            info = by_name(framework).modules(layer)[0][0]
            found = neutral(framework, info)
            assert settings.items() <= found.items()
            assert not set(settings) & set(vars(layer))
