"""The cases: what is planted, where, and what a judge should say of it. Data and a few lines that spell it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PAIRS = ("torch-paddle", "torch-mindspore")


class Expected(StrEnum):
    """What is true of a case."""

    BUG = "bug"
    CLEAN = "clean"
    BENIGN = "benign"
    PRECISION = "precision"


@dataclass(frozen=True, slots=True)
class Plant:
    """Something to be done to a candidate.

    `how` says by what means: "layer" builds another layer from the networks' `LAYERS`, "quirk" sets a module's `quirk`,
    "weight" damages the parameter `role` after the weights were carried, "mode" switches training on or off, "freeze"
    takes a parameter's gradient, "untie" gives the output projection a weight of its own, "twist" renames and reorders.
    """

    name: str
    how: str
    number: int = 0  # in PORT_BUGS.md; 0 for what is met beside it
    cause: str = ""  # a regular expression that a named cause contains, whatever its case
    ops: tuple[str, ...] = ()  # where an op is to blame: parts of its name, in any framework
    phase: str = "forward"  # where it shows first
    role: str = "weight"
    pairs: tuple[str, ...] = PAIRS


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison, and the right answer."""

    name: str
    pair: str
    network: str
    expected: Expected
    plant: Plant | None = None
    at: str = ""  # a path, a pattern, or "kind:linear"
    places: tuple[
        str, ...
    ] = ()  # the candidate's modules that are right answers; with the plant's ops where it has some
    training: str | None = None  # the path of what is in training mode on both sides, "" for everything
    skip: tuple[str, ...] = ()  # the reference's parameters that the candidate lacks


def _spread(plant: Plant, *sites: str, expected: Expected = Expected.BUG, **more: str | tuple[str, ...]) -> list[Case]:
    """A case per site and pair. A site is ``network``, or ``network:path``."""
    found = []
    for site in sites:
        network, _, at = site.partition(":")
        for pair in plant.pairs:
            places = more.get("places", (at,))
            training, skip = more.get("training"), more.get("skip", ())
            assert isinstance(places, tuple) and isinstance(skip, tuple) and not isinstance(training, tuple)
            name = f"{plant.name}, {network}{' ' + at if at else ''}"
            found.append(Case(name, pair, network, expected, plant, at, places, training, skip))
    return found


PADDLE, MINDSPORE = ("torch-paddle",), ("torch-mindspore",)
_EPS = r"eps"
_ADD = ("add",)
_MUL = ("mul", "scale", "bmm")
_SHAPE = ("reshape", "transpose", "permute", "view", "mul")
_GRADIENT = r"gradient|detach|backward|stop"


def _bugs() -> list[Case]:
    found: list[Case] = []

    def bug(plant: Plant, *sites: str, **more: str | tuple[str, ...]) -> None:
        found.extend(_spread(plant, *sites, **more))

    # layers with another setting
    norms = ("block:block.ln1", "deep:blocks.0.ln1", "deep:blocks.5.ln2", "deep:blocks.11.ln1", "deep:ln_f")
    bug(Plant("ln eps 1e-6", "layer", 29, _EPS), *norms)
    bug(Plant("ln eps 1e-12", "layer", 18, _EPS, pairs=PADDLE), "deep:blocks.2.ln2")
    bug(Plant("ln eps default", "layer", 18, _EPS, pairs=MINDSPORE), "block:block.ln2", "deep:blocks.7.ln1", "mha:ln")
    bug(Plant("gelu tanh", "layer", 30, "approximate|tanh"), "block:block.mlp.act", *_acts(0, 6, 11))
    bug(Plant("gelu default", "layer", 19, "approximate|tanh", pairs=MINDSPORE), "block:block.mlp.act")
    bug(Plant("relu for gelu", "layer", 0, "relu|activation"), "deep:blocks.4.mlp.act")
    skip = ("blocks.3.attn.v.bias",)
    bug(Plant("no bias", "layer", 16, "bias"), "deep:blocks.3.attn.v", skip=skip)
    bug(Plant("no bias", "layer", 16, "bias"), "block:block.mlp.fc1", skip=("block.mlp.fc1.bias",))
    bug(Plant("bn eps 1e-3", "layer", 0, _EPS), "resnet:bn", "resnet:stages.1.bn2")
    for at in ("bn", "stages.2.bn1"):
        momentum = Plant("bn momentum 0.1", "layer", 2, "momentum", phase="buffer")
        bug(momentum, f"resnet:{at}", training=at)
    unbiased = Plant("running variance biased", "none", 3, "bias|ddof", phase="buffer", pairs=PADDLE)
    bug(unbiased, "resnet:stages.0.bn1", training="stages.0.bn1")
    skip = ("norm.weight", "norm.bias")
    bug(Plant("instance norm plain", "layer", 12, "affine|weight|scale"), "vision:norm", skip=skip)
    bug(Plant("slope 0.2", "layer", 20, "slope|alpha"), "vision:act")
    bug(Plant("padding not counted", "layer", 6, "count_include_pad|exclusive|padding"), "vision:pool")
    bug(Plant("no convolution bias", "layer", 21, "bias"), "vision:mid", skip=("mid.bias",))
    same = Plant("pad mode same", "layer", 21, "pad", pairs=MINDSPORE)
    bug(same, "resnet:stages.1.conv1", "resnet:stages.2.conv1")
    bug(Plant("pool stride default", "layer", 22, "stride", pairs=MINDSPORE), "resnet:pool")
    bug(Plant("convolution dilated", "layer", 0, "dilation"), "resnet:stages.1.conv2")
    bug(Plant("padding reflected", "layer", 0, "padding", pairs=PADDLE), "resnet:stages.0.conv1")
    bug(Plant("time major", "layer", 14, "batch|time|major"), "rnn:lstm", "rnn:gru")
    bug(Plant("no padding index", "layer", 0, "padding", phase="gradient", pairs=PADDLE), "padded:emb")
    ignored = Plant("padding index ignored", "none", 0, "padding", phase="gradient", pairs=MINDSPORE)
    bug(ignored, "padded:emb")  # MindSpore's own row for padding gets a gradient
    bug(Plant("dropout 0.9", "layer", 17, r"\bp\b|prob|dropout"), "text:drop", training="drop")
    bug(Plant("training mode", "mode", 28, "training|mode"), "text:drop")
    bug(Plant("training mode", "mode", 28, "training|mode"), "resnet:bn", "resnet:stages.2.bn2")

    # other code
    for site in ("block:block.attn", "deep:blocks.0.attn", "deep:blocks.10.attn"):
        bug(Plant("no scale", "quirk", 31, "scale|factor", _MUL), site)
    bug(Plant("scale by model width", "quirk", 31, "scale|factor", _MUL), "block:block.attn", "deep:blocks.6.attn")
    bug(
        Plant("mask off by one", "quirk", 32, "mask", ("add", "mask", "where")),
        "block:block.attn",
        "deep:blocks.3.attn",
    )
    bug(Plant("mask added as it is", "quirk", 32, "mask", ("add", "mask", "where")), "block:block.attn")
    bug(Plant("mask too weak", "quirk", 32, "mask", ("add", "mask", "where")), "deep:blocks.8.attn")
    bug(Plant("softmax over queries", "quirk", 13, "axis|dim", ("softmax",)), "block:block.attn", "deep:blocks.5.attn")
    bug(Plant("q and k swapped", "quirk", 34, "swap|transpos|q|k", _SHAPE), "block:block.attn", "deep:blocks.11.attn")
    bug(Plant("heads split last", "quirk", 34, "order|permut|transpos", _SHAPE), "block:block.attn")
    bug(Plant("heads merged untransposed", "quirk", 34, "order|permut|transpos", _SHAPE), "deep:blocks.1.attn")
    bug(
        Plant("gelu tanh in the code", "quirk", 30, "approximate|tanh", ("gelu",)),
        "block:block.mlp",
        "deep:blocks.9.mlp",
    )
    bug(Plant("residual after norm", "quirk", 33, "residual|norm|input", _ADD), "block:block", "deep:blocks.4")
    after = Plant("norm after residual", "quirk", 33, "residual|norm|input", _ADD)
    bug(after, "deep:blocks.7", places=("blocks.7", "blocks.7.ln1"))
    rotary = ("slice", "getitem", "cat", "concat", "stack", "reshape", *_MUL, "sub", "add", "neg")
    bug(Plant("rotary interleaved", "quirk", 37, "rotary|order|permut|interleav", rotary), "llama:blocks.0.attn")
    bug(Plant("rotary turned back", "quirk", 37, "rotary|sign", rotary), "llama:blocks.1.attn")
    bug(Plant("gate and up swapped", "quirk", 38, "swap|gate|input", ("silu", "swish", "mul")), "llama:blocks.0.mlp")
    eps = Plant("rms eps 1e-6", "quirk", 29, _EPS, ("rsqrt", "add", "mean"))
    bug(eps, "llama:blocks.0.ln1", "llama:blocks.1.ln2", "llama:ln_f")
    early = Plant("relu before the sum", "quirk", 33, "residual|order|relu|input", ("add", "relu"))
    bug(early, "resnet:stages.1", places=("stages.1", "stages.1.relu"))
    flattened = Plant("flattened channels last", "quirk", 41, "order|permut|transpos", ("flatten", "transpose"))
    bug(flattened, "vision:", places=("",))
    bug(Plant("normalised over another axis", "quirk", 41, "axis|dim", ("std", "mean")), "statistics:standard")
    bug(Plant("std of the population", "quirk", 25, "ddof|unbiased|correction|scale", ("std",)), "statistics:standard")
    middle = ("median", "sort", "add", "div", "getitem")
    bug(Plant("mean of the middle two", "quirk", 11, "median|middle", middle), "statistics:median")
    bug(Plant("nearest", "quirk", 42, "mode|nearest", ("interpolate",)), "vision:resize")
    bug(Plant("resize corners", "quirk", 42, "align_corners", ("interpolate",)), "vision:resize")
    bug(Plant("grid sample default", "quirk", 10, "align_corners", ("grid_sample",), pairs=PADDLE), "vision:sample")
    bug(Plant("affine grid default", "quirk", 10, "align_corners", ("affine_grid",), pairs=PADDLE), "vision:sample")
    bug(Plant("grid sample corners", "quirk", 10, "align_corners", ("grid_sample",), pairs=MINDSPORE), "vision:sample")
    bug(Plant("affine grid corners", "quirk", 10, "align_corners", ("affine_grid",), pairs=MINDSPORE), "vision:sample")
    losses = ("cross_entropy", "mean")
    bug(Plant("mean over all", "quirk", 4, "reduction|ignore|scale|factor", losses), "classify:criterion")
    smooth = ("smooth_l1", "mul", "div")
    bug(Plant("delta for beta", "quirk", 5, "beta|delta|scale|factor", smooth), "regress:criterion")
    bug(Plant("beta forgotten", "quirk", 5, "beta|delta", smooth), "regress:criterion")
    reduction = Plant("reduction forgotten", "quirk", 26, "reduction", smooth, pairs=MINDSPORE)
    bug(reduction, "regress:criterion")
    bug(Plant("one expert", "quirk", 0, r"\bk\b", ("topk",)), "experts:moe")
    bug(Plant("shares not normalised", "quirk", 0, "scale|div|normal", ("div", "sum", "mul")), "experts:moe")
    bug(
        Plant("relu in place", "quirk", 43, "in.place", ("relu", "add", "setitem")),
        "preact:blocks.0",
        "preact:blocks.2",
    )

    # backward only
    detached = Plant("residual detached", "quirk", 39, _GRADIENT, ("add", "detach", "stop_gradient"), "backward")
    bug(detached, "deep:blocks.0", "deep:blocks.5")
    weights = Plant(
        "attention weights detached", "quirk", 39, _GRADIENT, ("mul", "softmax", "detach", "stop_gradient"), "backward"
    )
    bug(weights, "deep:blocks.2.attn")
    ops = ("mul", "sub", "add", "detach", "stop_gradient", "gelu")
    scaled = [Plant(f"gradient {how}", "quirk", 39, _GRADIENT, ops, "backward") for how in ("halved", "doubled")]
    bug(scaled[0], "block:block.mlp", "deep:blocks.0.mlp")
    bug(scaled[1], "deep:blocks.8.mlp")
    bug(Plant("frozen", "freeze", 39, "frozen|trainable|grad", phase="gradient"), "block:block.mlp.fc1")
    bug(Plant("frozen", "freeze", 39, "frozen|trainable|grad", phase="gradient"), "resnet:stages.1.conv1")
    bug(Plant("untied", "untie", 36, "tied|shared", phase="gradient"), "tied:emb", places=("emb", ""))

    # weights damaged after they were carried
    turned = Plant("transposed", "weight", 1, "transpos")
    bug(turned, "block:block.attn.o", "deep:blocks.5.attn.q", "experts:moe.experts.1")
    bug(Plant("bias 0.1 % too large", "weight", 16, "bias|scale", role="bias"), "deep:blocks.6.mlp.fc2", "vision:mid")
    row = Plant("one row wrong", "weight", 35, "row|channel|weight")
    bug(row, "block:block.mlp.fc2", "deep:blocks.11.attn.k", "resnet:stages.2.conv2", "rnn:emb")
    bug(Plant("through bfloat16", "weight", 35, "bfloat16|round"), "deep:blocks.1.mlp.fc1", "resnet:fc")
    bug(Plant("at its initial value", "weight", 35, "initial|ones|weight"), "deep:blocks.9.ln2", "resnet:stages.0.bn2")
    bug(Plant("gates in another order", "weight", 34, "order|permut|gate", role="weight_hh_l0"), "rnn:lstm", "rnn:gru")
    swapped = Plant(
        "q and k swapped in the weights", "weight", 15, "swap|order|permut", role="q_proj.weight", pairs=PADDLE
    )
    bug(swapped, "mha:attn", places=("attn", "attn.q_proj", "attn.k_proj"))
    fused = Plant(
        "q and k swapped in the weights", "weight", 15, "swap|order|permut", role="in_proj_weight", pairs=MINDSPORE
    )
    bug(fused, "mha:attn")
    bug(Plant("running mean forgotten", "weight", 27, "mean|initial|zero", role="running_mean"), "resnet:stages.1.bn1")
    return found


def _acts(*layers: int) -> list[str]:
    return [f"deep:blocks.{i}.mlp.act" for i in layers]


def _harmless() -> list[Case]:
    found: list[Case] = []
    networks = "block deep llama resnet rnn vision statistics text classify regress experts mha preact tied".split()
    for network in networks:
        found += [Case(f"clean, {network}", pair, network, Expected.CLEAN) for pair in PAIRS]
    # with Paddle the running variance would be another
    found.append(Case("clean, resnet in training", PAIRS[1], "resnet", Expected.CLEAN, training=""))
    # what is random may be left undecided; it is no bug
    found += [Case("clean, text in training", pair, "text", Expected.CLEAN, training="drop") for pair in PAIRS]

    def benign(plant: Plant, *sites: str) -> None:
        found.extend(_spread(plant, *sites, expected=Expected.BENIGN))

    for name in ("renamed", "reordered", "renested", "all"):
        benign(
            Plant(name, "twist"), "block", "deep" if name == "all" else "llama", "resnet" if name == "all" else "rnn"
        )
    for name in ("scale first", "softmax by hand", "mask -1e4"):
        benign(Plant(name, "quirk"), "block:block.attn", "deep:blocks.*.attn")
    benign(Plant("fused attention", "quirk", pairs=PADDLE), "block:block.attn", "deep:blocks.*.attn")
    benign(Plant("einsum", "quirk", pairs=PADDLE), "block:block.attn")
    benign(Plant("batched matrices", "quirk", pairs=MINDSPORE), "block:block.attn")
    benign(Plant("gelu in the code", "quirk"), "block:block.mlp", "deep:blocks.*.mlp")
    benign(Plant("gelu by hand", "quirk"), "deep:blocks.*.mlp")
    benign(Plant("silu by hand", "quirk"), "llama:blocks.*.mlp")
    benign(Plant("divided by the root", "quirk"), "llama:blocks.*.ln1")
    benign(Plant("sum the other way", "quirk"), "deep:blocks.*")
    benign(Plant("layer norm by hand", "layer"), "block:block.ln1", "deep:kind:layer_norm")
    benign(Plant("batch norm by hand", "layer"), "resnet:kind:batch_norm2d")
    benign(Plant("sum in two parts", "layer"), "block:kind:linear", "deep:kind:linear")
    benign(Plant("matmul and add", "layer"), "deep:kind:linear", "experts:kind:linear")
    benign(Plant("batch in halves", "quirk"), "block", "resnet")
    benign(Plant("pooling layer for mean", "quirk"), "resnet")
    benign(Plant("relu as maximum", "quirk"), "resnet:stages.*")
    benign(Plant("lstm unrolled", "quirk"), "rnn")
    benign(Plant("loss by hand", "quirk"), "classify:criterion")

    def precision(plant: Plant, *sites: str) -> None:
        found.extend(_spread(plant, *sites, expected=Expected.PRECISION))

    precision(Plant("tf32", "layer", cause="tf32"), "block:kind:linear", "deep:kind:linear")
    rounded = Plant("through bfloat16", "layer", cause="bfloat16|bf16", pairs=PADDLE)
    precision(rounded, "block:kind:linear", "deep:kind:linear", "experts:kind:linear")
    half = Plant("half precision", "layer", cause="float16|fp16", pairs=MINDSPORE)
    precision(half, "block:kind:linear", "deep:kind:linear", "experts:kind:linear")
    return found


def cases() -> list[Case]:
    """All of them, in the order in which they are reported."""
    return [*_bugs(), *_harmless()]


#: Kinds of PORT_BUGS.md without a case: they show in the optimizer's step or at initialisation, not in one pass.
NOT_HERE: Sequence[int] = (7, 8, 9, 23, 24, 40)
