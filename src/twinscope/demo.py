"""The demonstration: a small network in two frameworks, once ported faithfully and once with a bug planted.

It checks itself: the faithful port must be called the same, and the bug must be found in the line where it is.

The networks are written here as functions and copied from here into files of the user's directory, where they can be
read and changed, and whose lines the report can name. They are the only framework imports outside the adapters.
"""
# The networks import their framework when they are built, not when this module is loaded.

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .aligning import align
from .errors import FrameworkError, TraceWriteError, TwinscopeError
from .report.files import write_csv, write_json, write_text
from .report.terminal import render
from .result import Result

WHERE = "blocks.1"  # that the bug is planted in
_MARK = "the planted bug"
_REST = """

def build_with_bug() -> Any:
    return build(bug=True)


def inputs() -> Any:
    return np.random.default_rng(0).integers(0, 50, (4, 12))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demonstration came to."""

    clean: Result
    broken: Result
    found: bool  # in the place and in the line where it was planted
    told: tuple[str, ...]  # what was done, line by line
    place: Path
    command: str  # that does the second alignment again, each side in its own process

    @property
    def passed(self) -> bool:
        """Whether the faithful port was called the same and the bug was found where it is."""
        return bool(self.clean) and not self.broken and self.found

    @property
    def says(self) -> str:
        if self.passed:
            return "demo passed: the faithful port is the same, and the planted bug was found in its line"
        if not self.clean:
            return f"demo FAILED: the faithful port was called {self.clean.verdict}"
        return "demo FAILED: the planted bug was not found where it is"


def torch_network(bug: bool = False) -> Any:
    """A classifier of token sequences in PyTorch: two transformer blocks."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, approximate: str) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.fc1 = nn.Linear(width, 4 * width)
            self.fc2 = nn.Linear(4 * width, width)
            self.approximate = approximate

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            scores = torch.softmax(q @ k.transpose(-2, -1) / (width // 4) ** 0.5, dim=-1)
            x = x + self.proj((scores @ v).transpose(1, 2).reshape(batch, length, width))
            hidden = self.fc1(self.norm2(x))
            hidden = F.gelu(hidden, approximate=self.approximate)  # "tanh" in one block: the planted bug
            return x + self.fc2(hidden)

    class Classifier(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.blocks = nn.ModuleList([Block(32, "none"), Block(32, "tanh" if bug else "none")])
            self.head = nn.Linear(32, 5)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    return Classifier()


def paddle_network(bug: bool = False) -> Any:
    """The same classifier in PaddlePaddle."""
    import paddle
    from paddle import nn
    from paddle.nn import functional as F

    class Block(nn.Layer):  # type: ignore[misc]
        def __init__(self, width: int, approximate: bool) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.fc1 = nn.Linear(width, 4 * width)
            self.fc2 = nn.Linear(4 * width, width)
            self.approximate = approximate

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape([batch, length, 3, 4, width // 4]).transpose([2, 0, 3, 1, 4])
            scores = F.softmax(q @ k.transpose([0, 1, 3, 2]) / (width // 4) ** 0.5, axis=-1)
            x = x + self.proj((scores @ v).transpose([0, 2, 1, 3]).reshape([batch, length, width]))
            hidden = self.fc1(self.norm2(x))
            hidden = F.gelu(hidden, approximate=self.approximate)  # True in one block: the planted bug
            return x + self.fc2(hidden)

    class Classifier(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.blocks = nn.LayerList([Block(32, False), Block(32, bug)])
            self.head = nn.Linear(32, 5)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    paddle.seed(0)
    return Classifier()


def mindspore_network(bug: bool = False) -> Any:
    """The same classifier in MindSpore."""
    import mindspore
    from mindspore import nn, ops

    class Block(nn.Cell):  # type: ignore[misc]
        def __init__(self, width: int, approximate: str) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm([width], epsilon=1e-5)
            self.qkv = nn.Dense(width, 3 * width)
            self.proj = nn.Dense(width, width)
            self.norm2 = nn.LayerNorm([width], epsilon=1e-5)
            self.fc1 = nn.Dense(width, 4 * width)
            self.fc2 = nn.Dense(4 * width, width)
            self.approximate = approximate

        def construct(self, x: Any) -> Any:
            batch, length, width = x.shape
            qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, 4, width // 4).transpose(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]
            scores = ops.softmax(ops.matmul(q, k.transpose(0, 1, 3, 2)) / (width // 4) ** 0.5, axis=-1)
            x = x + self.proj(ops.matmul(scores, v).transpose(0, 2, 1, 3).reshape(batch, length, width))
            hidden = self.fc1(self.norm2(x))
            hidden = ops.gelu(hidden, approximate=self.approximate)  # "tanh" in one block: the planted bug
            return x + self.fc2(hidden)

    class Classifier(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.blocks = nn.CellList([Block(32, "none"), Block(32, "tanh" if bug else "none")])
            self.head = nn.Dense(32, 5)

        def construct(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    mindspore.set_seed(0)
    return Classifier()


NETWORKS: dict[str, Callable[..., Any]] = {
    "torch": torch_network,
    "paddle": paddle_network,
    "mindspore": mindspore_network,
}


def run(out: Path, *, pair: tuple[str, str] | None = None, stage: Callable[[str], None] | None = None) -> Outcome:
    """Align torch with the first of paddle, mindspore and torch itself that is there, or `pair`; reports go to `out`.

    ::

        outcome = run(Path("twinscope-demo"))
        print(outcome.says)
    """
    say = stage or (lambda text: None)
    reference, candidate, remark = (*pair, "") if pair else _choose()
    told = [remark] if remark else []
    place = _make(out)
    say(f"importing {reference} and {candidate}")
    first, second = _network(place, reference), _network(place, candidate)
    inputs = first.inputs()
    say(f"aligning {reference} with {candidate}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks, when they are imported
        model, port, buggy = first.build(), second.build(), second.build_with_bug()
    clean = align(model, port, inputs)
    told.append(f"1. {candidate}'s faithful port of the {reference} network: {clean.verdict}")
    say("and with a planted bug")
    broken = align(model, buggy, inputs)
    line = _line_of_bug(place / f"{candidate}_network.py")
    told.append(f"2. the port with tanh for erf in the gelu of {WHERE} ({line}): {broken.verdict}")
    for name, result in (("clean", clean), ("bug", broken)):
        write_json(result, place / f"{name}.json")
        write_csv(result, place / f"{name}.csv")
        write_text(render(result, width=100, unicode=True), place / f"{name}.txt")
    files = f"{out / reference}_network.py:build {out / candidate}_network.py:build_with_bug"
    command = f"twinscope align {files} --inputs {out / reference}_network.py:inputs"
    return Outcome(clean, broken, _is_found(broken, line), tuple(told), out, command)


def _choose() -> tuple[str, str, str]:
    """The reference's framework, the candidate's, and a word where it is not the pair that was meant."""
    from .doctor import installed

    there = installed()
    if "torch" not in there:
        raise FrameworkError("the demonstration needs torch", hint="pip install 'twinscope[torch,paddle]'")
    if "paddle" in there:
        return "torch", "paddle", ""
    if "mindspore" in there:
        return "torch", "mindspore", "paddle is not installed: mindspore takes its place"
    return "torch", "torch", "neither paddle nor mindspore is installed: torch is compared with itself"


def _make(out: Path) -> Path:
    place = out.absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, function in NETWORKS.items():
            source = textwrap.dedent(inspect.getsource(function)).replace(f"def {name}_network", "def build")
            text = f"from typing import Any\n\nimport numpy as np\n\n\n{source}{_REST}"
            write_text(text.replace("  # type: ignore[misc]", ""), place / f"{name}_network.py")
    except OSError as error:
        raise TraceWriteError(f"{out}: {error.strerror or error}", hint="choose another place with --out") from error
    return place


def _network(place: Path, framework: str) -> Any:
    """The user's copy, imported as Python would import it with that directory on its path."""
    name = f"{framework}_network"
    spec = importlib.util.spec_from_file_location(name, place / f"{name}.py")
    if spec is None or spec.loader is None:
        raise TwinscopeError(f"{place / name}.py cannot be loaded", hint="choose another place with --out")
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def _line_of_bug(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return f"{file.name}:{next(i for i, line in enumerate(lines, 1) if _MARK in line)}"


def _is_found(result: Result, line: str) -> bool:
    first = result.first_divergence
    if first is None or first.candidate is None or first.source[1] is None:
        return False
    source = first.source[1]
    return first.candidate.startswith(f"{WHERE} ") and line == f"{Path(source.file).name}:{source.line}"
