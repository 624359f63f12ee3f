"""What speaks for two things being the same: their names, their shapes, their statistics."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache

from ..records import Slot

_SYNONYMS = {
    alias: word
    for word, aliases in {
        "q": "query wq", "k": "key wk", "v": "value val wv", "o": "out output wo dense", "attention": "attn att mha",
        "norm": "ln layernorm batchnorm bn layer_norm", "embed": "emb embedding embeddings wte", "fc": "linear lin",
        "conv": "convolution", "block": "blocks layer layers cells", "classifier": "head cls", "act": "activation",
        "mlp": "ffn feedforward", "downsample": "shortcut", "proj": "projection",
    }.items()
    for alias in aliases.split()
}  # fmt: skip


@lru_cache(maxsize=65536)
def name_tokens(text: str) -> tuple[str, ...]:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)
    return tuple(sorted(_SYNONYMS.get(w, w) for w in (word.lower() for word in words)))


def _dice(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    if not a or not b:
        return 0.0
    if a == b:
        return 1.0
    rest = list(b)
    common = 0
    for token in a:
        if token in rest:
            rest.remove(token)
            common += 1
    return 2.0 * common / (len(a) + len(b))


def similarity(a: str, b: str) -> float:
    """How alike two paths are, 0 to 1; the last part counts most."""
    if a == b:
        return 1.0
    last = _dice(name_tokens(a.rsplit(".", 1)[-1]), name_tokens(b.rsplit(".", 1)[-1]))
    return 0.6 * last + 0.4 * _dice(name_tokens(a), name_tokens(b))


# -- evidence of tensors ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def layout_free(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape up to permutation, without axes of one element."""
    return tuple(sorted(n for n in shape if n != 1))


def agrees(a: Slot | None, b: Slot | None, tolerance: float = 1e-3) -> bool:
    """Whether the statistics of two tensors say that they hold the same numbers. A constant says nothing."""
    if a is None or b is None or a.stats is None or b.stats is None or a.meta.size != b.meta.size:
        return False
    x, y = a.stats, b.stats
    if x.nan != y.nan or x.inf != y.inf or (x.std == 0.0 and a.meta.size > 1):
        return False
    if a.meta.dtype == b.meta.dtype and x.fingerprint == y.fingerprint:
        return True
    rms = max(abs(x.l2), abs(y.l2)) / max(a.meta.size, 1) ** 0.5
    peak = max(abs(x.min), abs(x.max), abs(y.min), abs(y.max))
    return (
        rms > 0.0
        and abs(x.l2 - y.l2) <= tolerance * max(abs(x.l2), abs(y.l2))
        and abs(x.mean - y.mean) <= tolerance * rms
        and abs(x.min - y.min) <= tolerance * peak
        and abs(x.max - y.max) <= tolerance * peak
    )


def rounded(slot: Slot | None) -> Hashable:
    """The statistics of a tensor, rounded: equal for the same numbers, but for bad luck. None: they say nothing."""
    if slot is None or slot.stats is None or not slot.stats.std > 0.0:
        return None
    found = slot.stats
    return slot.meta.size, f"{found.l2:.3g} {found.min:.3g} {found.max:.3g}", found.nan, found.inf


def same_size(a: Slot, b: Slot) -> bool:
    return a.meta.size == b.meta.size
