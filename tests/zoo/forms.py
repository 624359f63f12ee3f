"""Small networks in several forms: the same mathematics with its weights packed, split, wrapped, held bare or tied.

`FORMS` lists pairs of names that must map to one another, in both directions, with what each is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import normal, tokens
from .kits import kit, scaled

DIM, HEADS, WIDE = 8, 2, 12

SEQUENCE = normal(2, 5, DIM)
IMAGE = normal(2, 3, 8, 8)
CHANNELS_LAST = IMAGE.transpose(0, 2, 3, 1)
WORDS = tokens(2, 5)

#: (reference, candidate): their inputs; each is tried in both directions.
FORMS: dict[tuple[str, str], tuple[Any, Any]] = {
    ("apart", "packed"): (SEQUENCE, SEQUENCE),
    ("apart", "packed_kqv"): (SEQUENCE, SEQUENCE),
    ("apart", "packed_vqk"): (SEQUENCE, SEQUENCE),
    ("apart", "packed_by_head"): (SEQUENCE, SEQUENCE),
    ("apart", "packed_innermost"): (SEQUENCE, SEQUENCE),
    ("apart", "kv_packed"): (SEQUENCE, SEQUENCE),
    ("apart", "bare_packed"): (SEQUENCE, SEQUENCE),
    ("apart", "bare_packed_in_out"): (SEQUENCE, SEQUENCE),
    ("apart", "bare_apart"): (SEQUENCE, SEQUENCE),
    ("packed", "bare_apart"): (SEQUENCE, SEQUENCE),
    ("packed", "bare_packed_in_out"): (SEQUENCE, SEQUENCE),
    ("packed", "packed_by_head"): (SEQUENCE, SEQUENCE),
    ("packed", "packed_kqv"): (SEQUENCE, SEQUENCE),
    ("packed", "bare_packed"): (SEQUENCE, SEQUENCE),
    ("apart", "native"): (SEQUENCE, SEQUENCE),
    ("packed", "native"): (SEQUENCE, SEQUENCE),
    ("packed_by_head", "native"): (SEQUENCE, SEQUENCE),
    ("native", "native"): (SEQUENCE, SEQUENCE),
    ("many_apart", "many_packed"): (SEQUENCE, SEQUENCE),
    ("blocks_apart", "blocks_packed_by_head"): (SEQUENCE, SEQUENCE),
    ("blocks_apart", "blocks_native"): (SEQUENCE, SEQUENCE),
    ("pointwise", "pointwise_linear"): (IMAGE, CHANNELS_LAST),
    ("pointwise", "pointwise_mixed"): (IMAGE, IMAGE),
    ("patches", "patches_flat"): (IMAGE, IMAGE),
    ("patches", "patches_flat_channels_last"): (IMAGE, IMAGE),
    ("square", "square_transposed"): (SEQUENCE, SEQUENCE),
    ("square", "square_linear"): (SEQUENCE, SEQUENCE),
    ("square_transposed", "square_linear"): (SEQUENCE, SEQUENCE),
    ("oblong", "oblong_transposed"): (SEQUENCE, SEQUENCE),
    ("two_squares", "two_squares_transposed"): (SEQUENCE, SEQUENCE),
    ("scaled", "scaled"): (SEQUENCE, SEQUENCE),
    ("scaled", "scaled_renamed"): (SEQUENCE, SEQUENCE),
    ("mlp", "wrapped"): (SEQUENCE, SEQUENCE),
    ("mlp", "wrapped_twice"): (SEQUENCE, SEQUENCE),
    ("mlp", "with_buffers"): (SEQUENCE, SEQUENCE),
    ("mlp", "sequential"): (SEQUENCE, SEQUENCE),
    ("branches", "branches_reordered"): (IMAGE, IMAGE),
    ("branches", "branches_listed"): (IMAGE, IMAGE),
    ("alike", "alike_renamed"): (SEQUENCE, SEQUENCE),
    ("alike", "alike_backwards"): (SEQUENCE, SEQUENCE),
    ("positions", "positions_table"): (WORDS, WORDS),
    ("tied", "tied_renamed"): (WORDS, WORDS),
    ("frozen", "frozen"): (SEQUENCE, SEQUENCE),
    ("frozen", "sequential"): (SEQUENCE, SEQUENCE),
    ("towers", "towers_reordered"): (SEQUENCE, SEQUENCE),
    ("vit", "vit_other"): (IMAGE, IMAGE),
    ("grouped_apart", "grouped_packed"): (SEQUENCE, SEQUENCE),
    ("gated_apart", "gated_packed"): (SEQUENCE, SEQUENCE),
    ("summed", "summed_reordered"): (SEQUENCE, SEQUENCE),
    ("spare", "spare_renamed"): (SEQUENCE, SEQUENCE),
    ("own_norm", "layer_norm"): (SEQUENCE, SEQUENCE),
    ("stem", "stem_flat"): (IMAGE, IMAGE),
}


def forms(framework: str) -> dict[str, Callable[[], Any]]:
    """Every form by name, in one framework."""
    k = kit(framework)
    return {**_attentions(k), **_layers(k), **_structures(k)}


def _heads(k: Any, x: Any) -> Any:
    return k.permute(k.reshape(x, 2, -1, HEADS, DIM // HEADS), 0, 2, 1, 3)


def _attend(k: Any, q: Any, key: Any, v: Any) -> Any:
    q, key, v = (_heads(k, x) for x in (q, key, v))
    scores = k.softmax(q @ k.permute(key, 0, 1, 3, 2) * (DIM // HEADS) ** -0.5)
    return k.reshape(k.permute(scores @ v, 0, 2, 1, 3), 2, -1, DIM)


def _attentions(k: Any) -> dict[str, Callable[[], Any]]:
    class Apart(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = k.linear(DIM, DIM)
            self.k = k.linear(DIM, DIM)
            self.v = k.linear(DIM, DIM)
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            return self.out(_attend(k, self.q(x), self.k(x), self.v(x)))

    class Packed(k.Module):
        """Block by block in some order; ``[head, 3, d]``; or ``[head, d, 3]``."""

        def __init__(self, order: str = "qkv", layout: str = "blocks") -> None:
            super().__init__()
            self.order, self.layout = order, layout
            self.qkv = k.linear(DIM, 3 * DIM)
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            y = self.qkv(x)
            if self.layout == "blocks":
                parts = [y[:, :, i * DIM : (i + 1) * DIM] for i in range(3)]
            elif self.layout == "heads":
                y = k.reshape(y, 2, -1, HEADS, 3, DIM // HEADS)
                parts = [k.reshape(y[:, :, :, i], 2, -1, DIM) for i in range(3)]
            else:
                y = k.reshape(y, 2, -1, HEADS, DIM // HEADS, 3)
                parts = [k.reshape(y[:, :, :, :, i], 2, -1, DIM) for i in range(3)]
            q, key, v = (parts[self.order.index(name)] for name in "qkv")
            return self.out(_attend(k, q, key, v))

    class KVPacked(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = k.linear(DIM, DIM)
            self.kv = k.linear(DIM, 2 * DIM)
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            y = self.kv(x)
            return self.out(_attend(k, self.q(x), y[:, :, :DIM], y[:, :, DIM:]))

    class BarePacked(k.Module):
        """One bare parameter, [3 out, in] or [in, 3 out]."""

        def __init__(self, in_first: bool = False) -> None:
            super().__init__()
            self.in_first = in_first
            self.qkv_weight = k.parameter(scaled(DIM, 3 * DIM) if in_first else scaled(3 * DIM, DIM))
            self.qkv_bias = k.parameter(scaled(3 * DIM))
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            y = x @ self.qkv_weight + self.qkv_bias if self.in_first else k.matrix(x, self.qkv_weight, self.qkv_bias)
            return self.out(_attend(k, *(y[:, :, i * DIM : (i + 1) * DIM] for i in range(3))))

    class BareApart(k.Module):
        """Three bare parameters, held in an order of their own and used as x @ w."""

        def __init__(self) -> None:
            super().__init__()
            for name in ("w_v", "w_q", "w_k"):
                setattr(self, name, k.parameter(scaled(DIM, DIM)))
            for name in ("b_v", "b_q", "b_k"):
                setattr(self, name, k.parameter(scaled(DIM)))
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            q, key, v = x @ self.w_q + self.b_q, x @ self.w_k + self.b_k, x @ self.w_v + self.b_v
            return self.out(_attend(k, q, key, v))

    class Native(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = k.attention(DIM, HEADS)

        def forward(self, x: Any) -> Any:
            return k.attend(self.attn, x)

    class Block(k.Module):
        def __init__(self, attention: Callable[[], Any]) -> None:
            super().__init__()
            self.norm1 = k.layer_norm(DIM)
            self.attn = attention()
            self.norm2 = k.layer_norm(DIM)
            self.fc1 = k.linear(DIM, WIDE)
            self.fc2 = k.linear(WIDE, DIM)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(k.tanh(self.fc1(self.norm2(x))))

    class Blocks(k.Module):
        def __init__(self, attention: Callable[[], Any], count: int = 3) -> None:
            super().__init__()
            self.blocks = k.modules([Block(attention) for _ in range(count)])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    return {
        "apart": Apart,
        "packed": Packed,
        "packed_kqv": lambda: Packed("kqv"),
        "packed_vqk": lambda: Packed("vqk"),
        "packed_by_head": lambda: Packed(layout="heads"),
        "packed_innermost": lambda: Packed(layout="innermost"),
        "kv_packed": KVPacked,
        "bare_packed": BarePacked,
        "bare_packed_in_out": lambda: BarePacked(in_first=True),
        "bare_apart": BareApart,
        "native": Native,
        "many_apart": lambda: Blocks(Apart, 12),
        "many_packed": lambda: Blocks(Packed, 12),
        "blocks_apart": lambda: Blocks(Apart),
        "blocks_packed": lambda: Blocks(Packed),
        "blocks_packed_by_head": lambda: Blocks(lambda: Packed(layout="heads")),
        "blocks_native": lambda: Blocks(Native),
    }


def _layers(k: Any) -> dict[str, Callable[[], Any]]:
    class Pointwise(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = k.conv(3, 6, 1)
            self.second = k.conv(6, 4, 1)

        def forward(self, x: Any) -> Any:
            return self.second(k.tanh(self.first(x)))

    class PointwiseLinear(k.Module):
        """Over channels that come last, or moved there and back around the second."""

        def __init__(self, mixed: bool = False) -> None:
            super().__init__()
            self.mixed = mixed
            self.expand = k.linear(3, 6)
            self.project = k.linear(6, 4)

        def forward(self, x: Any) -> Any:
            if self.mixed:
                x = k.permute(x, 0, 2, 3, 1)
            y = self.project(k.tanh(self.expand(x)))
            return k.permute(y, 0, 3, 1, 2)

    class Patches(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = k.conv(3, DIM, 4, 4)
            self.head = k.linear(DIM, 3)

        def forward(self, x: Any) -> Any:
            y = k.permute(k.reshape(self.proj(x), 2, DIM, 4), 0, 2, 1)
            return self.head(k.tanh(y))

    class PatchesFlat(k.Module):
        def __init__(self, axes: Sequence[int] = (0, 2, 4, 1, 3, 5)) -> None:
            super().__init__()
            self.axes = axes
            self.embed = k.linear(48, DIM)
            self.head = k.linear(DIM, 3)

        def forward(self, x: Any) -> Any:
            y = k.permute(k.reshape(x, 2, 3, 2, 4, 2, 4), *self.axes)
            return self.head(k.tanh(self.embed(k.reshape(y, 2, 4, 48))))

    class Matrix(k.Module):
        def __init__(self, count: int = 1, out: int = DIM, transposed: bool = False) -> None:
            super().__init__()
            self.count, self.transposed = count, transposed
            for i in range(count):
                setattr(self, f"matrix{i}", k.parameter(scaled(out, DIM) if transposed else scaled(DIM, out)))
            self.head = k.linear(out, 3)

        def forward(self, x: Any) -> Any:
            for i in range(self.count):
                w = getattr(self, f"matrix{i}")
                x = k.tanh(k.matrix(x, w) if self.transposed else x @ w)
            return self.head(x)

    class MatrixLinear(k.Module):
        """The same with a layer, whose bias is none of the others'."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = _without_bias(k, DIM, DIM)
            self.head = k.linear(DIM, 3)

        def forward(self, x: Any) -> Any:
            return self.head(k.tanh(self.inner(x)))

    class Scaled(k.Module):
        """LayerScale: what a block adds is next to nothing at first."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name_of_scale = name
            self.norm = k.layer_norm(DIM)
            self.fc1 = k.linear(DIM, WIDE)
            self.fc2 = k.linear(WIDE, DIM)
            setattr(self, name, k.parameter(np.full(DIM, 1e-6)))

        def forward(self, x: Any) -> Any:
            return x + getattr(self, self.name_of_scale) * self.fc2(k.tanh(self.fc1(self.norm(x))))

    class ScaledNet(k.Module):
        def __init__(self, name: str, listed: str) -> None:
            super().__init__()
            setattr(self, listed, k.modules([Scaled(name) for _ in range(4)]))
            self.listed = listed

        def forward(self, x: Any) -> Any:
            for block in getattr(self, self.listed):
                x = block(x)
            return x

    return {
        "pointwise": Pointwise,
        "pointwise_linear": PointwiseLinear,
        "pointwise_mixed": lambda: PointwiseLinear(mixed=True),
        "patches": Patches,
        "patches_flat": PatchesFlat,
        "patches_flat_channels_last": lambda: PatchesFlat((0, 2, 4, 3, 5, 1)),
        "square": Matrix,
        "square_transposed": lambda: Matrix(transposed=True),
        "square_linear": MatrixLinear,
        "two_squares": lambda: Matrix(2),
        "two_squares_transposed": lambda: Matrix(2, transposed=True),
        "oblong": lambda: Matrix(out=WIDE),
        "oblong_transposed": lambda: Matrix(out=WIDE, transposed=True),
        "scaled": lambda: ScaledNet("gamma", "blocks"),
        "scaled_renamed": lambda: ScaledNet("layer_scale", "stages"),
    }


def _without_bias(k: Any, inputs: int, out: int) -> Any:
    if k.name == "mindspore":
        return k.linear(inputs, out, has_bias=False)
    return k.linear(inputs, out, bias=False) if k.name == "torch" else k.linear(inputs, out, bias_attr=False)


def _structures(k: Any) -> dict[str, Callable[[], Any]]:
    class MLP(k.Module):
        def __init__(self, layers: int = 3) -> None:
            super().__init__()
            self.first = k.linear(DIM, WIDE)
            self.second = k.linear(WIDE, WIDE)
            if layers > 3:
                self.between = k.linear(WIDE, WIDE)
            self.layers = layers
            self.third = k.linear(WIDE, 3)

        def forward(self, x: Any) -> Any:
            x = k.tanh(self.second(k.tanh(self.first(x))))
            if self.layers > 3:
                x = k.tanh(self.between(x))
            return self.third(x)

    class Wrapped(k.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.backbone = inner

        def forward(self, x: Any) -> Any:
            return self.backbone(x)

    class WithBuffers(MLP):
        """An index table, a mask and a number that only this side has."""

        def __init__(self) -> None:
            super().__init__()
            k.buffer(self, "position_ids", np.arange(6, dtype=np.int64))
            k.buffer(self, "mask", np.triu(np.ones((5, 5), np.float32)))
            k.buffer(self, "scale", np.ones((DIM,), np.float32))

        def forward(self, x: Any) -> Any:
            return super().forward(x * self.scale)

    class Tanh(k.Module):
        def forward(self, x: Any) -> Any:
            return k.tanh(x)

    class Branches(k.Module):
        """Inception's: branches of one shape, told apart by where in the output they end."""

        def __init__(self, order: Sequence[int] = (0, 1, 2), listed: bool = False) -> None:
            super().__init__()
            self.stem = k.conv(3, 4, 3, 1, 1)
            if listed:
                self.paths = k.modules([k.conv(4, 4, 3, 1, 1) for _ in range(3)])
            else:
                for i in order:
                    setattr(self, f"branch{'abc'[i] if order[0] else i}", k.conv(4, 4, 3, 1, 1))
            self.names = None if listed else [f"branch{'abc'[i] if order[0] else i}" for i in range(3)]
            self.end = k.conv(12, 2, 1)

        def forward(self, x: Any) -> Any:
            h = k.relu(self.stem(x))
            paths = list(self.paths) if self.names is None else [getattr(self, name) for name in self.names]
            return self.end(k.cat([k.relu(path(h)) for path in paths], 1))

    class Alike(k.Module):
        """Equal layers, with equal weights at first."""

        def __init__(self, names: Sequence[str], backwards: bool = False) -> None:
            super().__init__()
            for name in reversed(names) if backwards else names:
                layer = k.linear(DIM, DIM)
                fill_with(k, layer, 0.1)
                setattr(self, name, layer)
            self.names = names

        def forward(self, x: Any) -> Any:
            for name in self.names:
                x = x + k.tanh(getattr(self, name)(x))
            return x

    class Positions(k.Module):
        def __init__(self, table: bool) -> None:
            super().__init__()
            self.table = table
            self.words = k.embedding(11, DIM)
            if table:
                self.places = k.parameter(scaled(1, 5, DIM))
            else:
                self.places = k.embedding(5, DIM)
                k.buffer(self, "position_ids", np.arange(5, dtype=np.int64))
            self.head = k.linear(DIM, 3)

        def forward(self, ids: Any) -> Any:
            places = self.places if self.table else self.places(self.position_ids)
            return self.head(k.tanh(self.words(ids) + places))

    class Tied(k.Module):
        def __init__(self, name: str, tied: bool = True) -> None:
            super().__init__()
            setattr(self, name, k.embedding(11, DIM))
            self.mid = k.linear(DIM, DIM)
            self.name_of_table, self.tied = name, tied
            if not tied:
                self.decoder = _without_bias(k, DIM, 11)

        def forward(self, ids: Any) -> Any:
            table = getattr(self, self.name_of_table)
            h = k.tanh(self.mid(table(ids)))
            if not self.tied:
                return self.decoder(h)
            weight = table.embedding_table if k.name == "mindspore" else table.weight
            return k.matrix(h, weight)

    class Towers(k.Module):
        """Two towers of one shape, one after the other, defined in either order."""

        def __init__(self, order: Sequence[str]) -> None:
            super().__init__()
            for name in order:
                setattr(self, name, k.sequential(k.linear(DIM, WIDE), Tanh(), k.linear(WIDE, DIM)))
            self.names = sorted(order)

        def forward(self, x: Any) -> Any:
            for name in self.names:
                x = x + getattr(self, name)(x)
            return x

    class Norm(k.Module):
        def __init__(self, affine: bool) -> None:
            super().__init__()
            self.conv = k.conv(3, 4, 3)
            self.norm = k.instance_norm(4, affine)
            self.after = k.conv(4, 4, 1)

        def forward(self, x: Any) -> Any:
            return self.after(self.norm(self.conv(x)))

    class Attention(k.Module):
        def __init__(self, packed: bool) -> None:
            super().__init__()
            self.packed = packed
            if packed:
                self.qkv = k.linear(DIM, 3 * DIM)
                self.proj = k.linear(DIM, DIM)
            else:
                self.query = k.linear(DIM, DIM)
                self.key = k.linear(DIM, DIM)
                self.value = k.linear(DIM, DIM)
                self.dense = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            if not self.packed:
                return self.dense(_attend(k, self.query(x), self.key(x), self.value(x)))
            y = self.qkv(x)
            return self.proj(_attend(k, *(y[:, :, i * DIM : (i + 1) * DIM] for i in range(3))))

    class Layer(k.Module):
        def __init__(self, packed: bool) -> None:
            super().__init__()
            names = ("norm1", "norm2", "fc1", "fc2") if packed else ("before", "after", "wide", "narrow")
            self.names = names
            setattr(self, names[0], k.layer_norm(DIM))
            self.attn = Attention(packed)
            setattr(self, names[1], k.layer_norm(DIM))
            setattr(self, names[2], k.linear(DIM, DIM))
            setattr(self, names[3], k.linear(DIM, DIM))

        def forward(self, x: Any) -> Any:
            before, after, wide, narrow = (getattr(self, name) for name in self.names)
            x = x + self.attn(before(x))
            return x + narrow(k.tanh(wide(after(x))))

    class ViT(k.Module):
        """Everything at once: patches, a class token, positions, blocks, a head; square layers throughout."""

        def __init__(self, packed: bool) -> None:
            super().__init__()
            self.cls_token = k.parameter(np.zeros((1, 1, DIM)))
            if packed:
                self.pos_embed = k.parameter(scaled(1, 5, DIM))
                self.patch_embed = k.conv(3, DIM, 4, 4)
                self.blocks = k.modules([Layer(True) for _ in range(3)])
                self.norm = k.layer_norm(DIM)
            else:
                self.encoder = k.modules([Layer(False) for _ in range(3)])
                self.final = k.layer_norm(DIM)
                self.projection = k.conv(3, DIM, 4, 4)
                self.positions = k.parameter(np.zeros((1, 5, DIM)))
            self.head = k.linear(DIM, DIM)
            self.packed = packed

        def forward(self, x: Any) -> Any:
            patches = self.patch_embed(x) if self.packed else self.projection(x)
            y = k.permute(k.reshape(patches, 2, DIM, 4), 0, 2, 1)
            y = k.cat([self.cls_token + y[:, :1] * 0.0, y], 1)
            y = y + (self.pos_embed if self.packed else self.positions)
            for layer in self.blocks if self.packed else self.encoder:
                y = layer(y)
            y = self.norm(y) if self.packed else self.final(y)
            return self.head(y[:, 0])

    class Grouped(k.Module):
        """More queries than keys and values, which all heads share."""

        def __init__(self, packed: bool) -> None:
            super().__init__()
            self.packed = packed
            half = DIM // HEADS
            if packed:
                self.qkv = k.linear(DIM, DIM + 2 * half)
            else:
                self.v = k.linear(DIM, half)
                self.k = k.linear(DIM, half)
                self.q = k.linear(DIM, DIM)
            self.out = k.linear(DIM, DIM)

        def forward(self, x: Any) -> Any:
            half = DIM // HEADS
            if self.packed:
                y = self.qkv(x)
                q, key, v = y[:, :, :DIM], y[:, :, DIM : DIM + half], y[:, :, DIM + half :]
            else:
                q, key, v = self.q(x), self.k(x), self.v(x)
            return self.out(_attend(k, q, k.cat([key] * HEADS, 2), k.cat([v] * HEADS, 2)))

    class Gated(k.Module):
        """A gate and what goes through it, in two projections or in one."""

        def __init__(self, packed: bool) -> None:
            super().__init__()
            self.packed = packed
            if packed:
                self.w12 = k.linear(DIM, 2 * WIDE)
                self.w3 = k.linear(WIDE, DIM)
            else:
                self.up_proj = k.linear(DIM, WIDE)
                self.gate_proj = k.linear(DIM, WIDE)
                self.down_proj = k.linear(WIDE, DIM)

        def forward(self, x: Any) -> Any:
            if self.packed:
                y = self.w12(x)
                return x + self.w3(k.tanh(y[:, :, :WIDE]) * y[:, :, WIDE:])
            return x + self.down_proj(k.tanh(self.gate_proj(x)) * self.up_proj(x))

    class Summed(k.Module):
        """Two that are added: either may stand for the other."""

        def __init__(self, names: Sequence[str]) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, k.linear(DIM, DIM))
            self.names = names

        def forward(self, x: Any) -> Any:
            return k.tanh(getattr(self, self.names[0])(x) + getattr(self, self.names[1])(x))

    class Spare(k.Module):
        """With a head that evaluation does not use."""

        def __init__(self, names: Sequence[str]) -> None:
            super().__init__()
            for name, out in zip(names, (DIM, 5, 3), strict=True):
                setattr(self, name, k.linear(DIM, out))
            self.names = names

        def forward(self, x: Any) -> Any:
            return getattr(self, self.names[2])(k.tanh(getattr(self, self.names[0])(x)))

    class OwnNorm(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = k.parameter(np.ones(DIM))
            self.shift = k.parameter(np.zeros(DIM))

        def forward(self, x: Any) -> Any:
            x = x - x.mean(-1, **{k.keepdim: True})
            variance = (x * x).mean(-1, **{k.keepdim: True})
            return x * (variance + 1e-5) ** -0.5 * self.scale + self.shift

    class Normed(k.Module):
        def __init__(self, norm: Callable[[], Any]) -> None:
            super().__init__()
            self.first = k.linear(DIM, DIM)
            self.norm = norm()
            self.second = k.linear(DIM, DIM)
            self.last = norm()

        def forward(self, x: Any) -> Any:
            return self.last(self.second(k.tanh(self.norm(self.first(x)))))

    class Stem(k.Module):
        """Convolutions, norms and a head after flattening: the head's columns go by channel, height, width."""

        def __init__(self, flat: bool) -> None:
            super().__init__()
            self.conv = k.conv(3, 4, 4, 4)
            if flat:
                self.body = k.sequential(k.linear(16, WIDE), Tanh(), k.linear(WIDE, WIDE))
            else:
                self.fc1 = k.conv(4, WIDE, 2)
                self.fc2 = k.conv(WIDE, WIDE, 1)
            self.flat = flat

        def forward(self, x: Any) -> Any:
            x = k.tanh(self.conv(x))
            if self.flat:
                return self.body(k.reshape(x, 2, 16))
            return k.reshape(self.fc2(k.tanh(self.fc1(x))), 2, WIDE)

    def frozen() -> Any:
        made = MLP()
        k.freeze(made)
        return made

    return {
        "mlp": MLP,
        "mlp_4": lambda: MLP(4),
        "wrapped": lambda: Wrapped(MLP()),
        "wrapped_twice": lambda: Wrapped(Wrapped(MLP())),
        "with_buffers": WithBuffers,
        "sequential": lambda: k.sequential(
            k.linear(DIM, WIDE), Tanh(), k.linear(WIDE, WIDE), Tanh(), k.linear(WIDE, 3)
        ),
        "frozen": frozen,
        "grouped_apart": lambda: Grouped(False),
        "grouped_packed": lambda: Grouped(True),
        "gated_apart": lambda: Gated(False),
        "gated_packed": lambda: Gated(True),
        "summed": lambda: Summed(("a", "b")),
        "summed_reordered": lambda: Summed(("y", "x")),
        "spare": lambda: Spare(("body", "aux", "head")),
        "spare_renamed": lambda: Spare(("trunk", "extra", "final")),
        "own_norm": lambda: Normed(OwnNorm),
        "layer_norm": lambda: Normed(lambda: k.layer_norm(DIM)),
        "stem": lambda: Stem(False),
        "stem_flat": lambda: Stem(True),
        "branches": Branches,
        "branches_reordered": lambda: Branches((2, 0, 1)),
        "branches_listed": lambda: Branches(listed=True),
        "alike": lambda: Alike(("one", "two", "three", "four")),
        "alike_renamed": lambda: Alike(("w", "x", "y", "z")),
        "alike_backwards": lambda: Alike(("one", "two", "three", "four"), backwards=True),
        "positions": lambda: Positions(False),
        "positions_table": lambda: Positions(True),
        "tied": lambda: Tied("embed"),
        "tied_renamed": lambda: Tied("wte"),
        "untied": lambda: Tied("embed", tied=False),
        "towers": lambda: Towers(("left", "right")),
        "towers_reordered": lambda: Towers(("right", "left")),
        "norm": lambda: Norm(True),
        "norm_plain": lambda: Norm(False),
        "vit": lambda: ViT(True),
        "vit_other": lambda: ViT(False),
    }


def fill_with(k: Any, layer: Any, value: float) -> None:
    """One number everywhere."""
    from twinscope.adapters._registry import by_name

    adapter = by_name(k.name)
    for tensor in adapter.state(layer).values():
        adapter.assign(tensor, np.full(adapter.to_numpy(tensor).shape, value, np.float32))
