"""How long matching takes as traces grow: it should be about linear, and at most 100 microseconds a record.

    python benchmarks/matching.py

Two transformers, the second one renamed, defined in another order, with k, v and q called in that order, other op
names and one op more in each block. "bugged" differs in every statistic after the first layer, as after a real bug;
"flat" has no modules but the root, so that everything is one long stream of ops. "wrong" counts calls that have another
partner than they should.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from trace_factory import FakeTensor, FakeTrace, TraceFactory

from twinscope.match import match

DIM, HEADS, TOKENS = 64, 4, 10
PLAIN = ("layers", "attn", "q", "k", "v", "out", "ln1", "ln2", "fc1", "fc2")
OTHER = ("blocks", "attention", "wq", "wk", "wv", "proj", "norm_a", "norm_b", "dense_in", "dense_out")


def transformer(layers: int, candidate: bool, bugged: bool, flat: bool) -> tuple[FakeTrace, dict[str, int]]:
    f = "paddle" if candidate else "torch"
    names = dict(zip(PLAIN, OTHER if candidate else PLAIN, strict=True))
    t = TraceFactory(f)
    paths: list[str] = []
    for i in range(layers):
        prefix = f"{names['layers']}.{i}"
        parts = [f"{names['attn']}.{names[n]}" for n in "qkv"] + [f"{names['attn']}.{names['out']}"]
        if not flat:
            t.module(prefix)
            t.module(f"{prefix}.{names['attn']}")
            for name in parts:
                t.module(f"{prefix}.{name}", "linear", content=f"{i}", weight=(DIM, DIM), bias=(DIM,))
            for name in ("ln1", "ln2"):
                t.module(f"{prefix}.{names[name]}", "layer_norm", weight=(DIM,), bias=(DIM,))
            t.module(f"{prefix}.{names['fc1']}", "linear", content=f"{i}", weight=(4 * DIM, DIM), bias=(4 * DIM,))
            t.module(f"{prefix}.{names['fc2']}", "linear", content=f"{i}", weight=(DIM, 4 * DIM), bias=(DIM,))
    shape, split = (2, TOKENS, DIM), (2, HEADS, TOKENS, DIM // HEADS)

    def content(name: str, i: int) -> str:
        return f"{name}{i}{f if bugged and i else ''}"

    def layer(path: str, x: FakeTensor, name: str, i: int, out: tuple[int, ...] | None = None) -> FakeTensor:
        op = f"{f}.nn.functional.{'layer_norm' if 'ln' in name else 'linear'}"
        if flat:
            return t.op(op, x, out=out, content=content(name, i), uid=f"{i} {name}")
        return t.leaf(path, x, out=out, content=content(name, i), inner=op, uid=f"{i} {name}")

    def block(i: int, x: FakeTensor) -> FakeTensor:
        base = f"{names['layers']}.{i}"
        attn = f"{base}.{names['attn']}"
        y = layer(f"{base}.{names['ln1']}", x, "ln1", i)
        parts = {}
        for n in "kvq" if candidate else "qkv":
            h = layer(f"{attn}.{names[n]}", y, n, i)
            h = t.op(
                f"{f}.Tensor.reshape",
                h,
                out=(2, TOKENS, HEADS, DIM // HEADS),
                content=content(n, i),
                uid=f"{i} {n} reshape",
            )
            parts[n] = t.op(f"{f}.transpose", h, out=split, content=content(n, i))
        k = t.op(f"{f}.transpose", parts["k"], out=(2, HEADS, DIM // HEADS, TOKENS), content=content("k", i))
        s = t.op(
            f"{f}.matmul", parts["q"], k, out=(2, HEADS, TOKENS, TOKENS), content=content("s", i), uid=f"{i} scores"
        )
        s = t.op(f"{f}.nn.functional.softmax", s, content=content("softmax", i), uid=f"{i} softmax")
        h = t.op(f"{f}.matmul", s, parts["v"], out=split, content=content("h", i))
        if candidate:
            h = t.op("paddle.Tensor.contiguous", h, content=content("h", i))
        h = t.op(f"{f}.Tensor.reshape", h, out=shape, content=content("h", i))
        x = t.op(f"{f}.add", x, layer(f"{attn}.{names['out']}", h, "o", i), content=content("a", i))
        h = layer(f"{base}.{names['ln2']}", x, "ln2", i)
        h = layer(f"{base}.{names['fc1']}", h, "fc1", i, out=(2, TOKENS, 4 * DIM))
        h = t.op(f"{f}.nn.functional.gelu", h, content=content("g", i), uid=f"{i} gelu")
        return t.op(f"{f}.add", x, layer(f"{base}.{names['fc2']}", h, "fc2", i, out=shape), content=content("b", i))

    t.state()
    x = t.tensor(shape, "x")
    with t.call("", x) as root:
        for i in range(layers):
            if flat:
                x = block(i, x)
                continue
            with t.call(f"{names['layers']}.{i}", x) as call:
                x = block(i, x)
                call.returns(x)
        root.returns(x)
    t.backward()
    paths = list(t.infos)[1:]
    if candidate:
        random.Random(0).shuffle(paths)
    return t.trace(["", *paths]), t.uids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options = parser.parse_args()
    match(*(transformer(1, side, False, False)[0] for side in (False, True)))  # what is imported at first use
    print(f"{'case':12} {'records':>8} {'seconds':>8} {'us/record':>10} {'ratio':>7} {'unmatched':>10} {'wrong':>6}")
    for case in ("clean", "bugged", "flat", "flat bugged"):
        before = 0.0
        for size in options.sizes:
            flat, bugged = "flat" in case, "bugged" in case
            probe = len(transformer(4, False, bugged, flat)[0].records) / 4
            layers = max(1, round(size / probe))
            reference, calls = transformer(layers, False, bugged, flat)
            candidate, others = transformer(layers, True, bugged, flat)
            start = time.perf_counter()
            found = match(reference, candidate)
            seconds = time.perf_counter() - start
            n = len(reference.records)
            ratio = f"{seconds / before:.1f}x" if before else ""
            lost = len(found.unmatched_reference)
            partner = {p.reference.call_id: p.candidate.call_id for p in found.pairs}
            wrong = sum(partner.get(call) != others[uid] for uid, call in calls.items())
            print(f"{case:12} {n:8} {seconds:8.2f} {1e6 * seconds / n:10.1f} {ratio:>7} {lost:10} {wrong:6}")
            before = seconds


if __name__ == "__main__":
    main()
