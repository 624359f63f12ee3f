"""What TroubleShooter's dump costs: a training step of a 12-block transformer, plain and dumped, in one run.

    python benchmarks/api_dump.py [--width 64 512] [--batch 16] [--tokens 64] [--rounds 9] [--stretch 1]
                                  [--original "python -m some_environment's runner"]

A dump is everything from `api_dump_start` to `api_dump_stop` with gradients, files written: nothing is left for later.
Times are the least CPU seconds of several rounds in which plain and dumped steps take turns; the ratio is what counts.
`--stretch` is the number of steps between start and stop. `--original` is a command that runs this file where
TroubleShooter itself is installed as `troubleshooter`; its ratios stand beside ours.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

DEPTH, HEADS = 12, 4


def build(width: int, batch: int, tokens: int) -> tuple[Any, Callable[[], None]]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(x).reshape(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
            weights = torch.softmax((q @ k.transpose(-2, -1)) * (c // HEADS) ** -0.5, -1)
            return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.attn = Attention()
            self.norm2 = nn.LayerNorm(width)
            self.fc1 = nn.Linear(width, 4 * width)
            self.act = nn.GELU()
            self.fc2 = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    net = nn.Sequential(*[Block() for _ in range(DEPTH)])
    x = torch.randn(batch, tokens, width)

    def step() -> None:
        net.zero_grad()
        net(x).pow(2).mean().backward()

    return net, step


def measure(width: int, batch: int, tokens: int, rounds: int, stretch: int) -> None:
    import troubleshooter as ts

    net, step = build(width, batch, tokens)

    def dumped(dump_type: str) -> None:
        ts.migrator.api_dump_start(dump_type=dump_type)
        for _ in range(stretch):
            step()
        ts.migrator.api_dump_stop()

    def plain(_: str) -> None:
        for _ in range(stretch):
            step()

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        best = {"plain": float("inf"), "statistics": float("inf"), "all": float("inf")}
        for turn in range(rounds):
            for way in best:
                if way != "plain":
                    ts.migrator.api_dump_init(net, output_path=f"{folder}/{way}{turn}", retain_backward=True)
                began = time.process_time()
                (plain if way == "plain" else dumped)(way)
                best[way] = min(best[way], time.process_time() - began)
    for way, seconds in best.items():
        print(f"{width:6} {way:12} {seconds / stretch * 1e3:9.1f} ms {seconds / best['plain']:7.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", nargs="+", type=int, default=[64, 512])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stretch", type=int, default=1)
    parser.add_argument("--original", help="a command that runs a script where TroubleShooter itself is installed")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    rest = ["--batch", str(o.batch), "--tokens", str(o.tokens), "--stretch", str(o.stretch), "--one"]
    if o.one:
        for width in o.width:
            measure(width, o.batch, o.tokens, o.rounds, o.stretch)
        return
    runs = [("twinscope", [sys.executable], o.rounds)]
    if o.original:
        runs.append(("TroubleShooter", shlex.split(o.original), 1))
    for name, command, rounds in runs:
        print(f"{name}\n {'width':>5} {'way':12} {'a step':>12} {'ratio':>9}", flush=True)
        for width in o.width:
            subprocess.run([*command, __file__, "--width", str(width), "--rounds", str(rounds), *rest], check=True)


if __name__ == "__main__":
    main()
