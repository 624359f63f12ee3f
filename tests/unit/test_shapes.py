"""What kind of mistake makes a tensor differ in just this way: planted ones are found, and none where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf

from twinscope.explain.shapes import Shape, describe_order, known_factor, precision_mode, residual_shapes, rounded

NOISE = 3e-8

Array = Any
seeds = st.integers(0, 10_000)


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def noisy(seed: int, array: Array) -> Array:
    return array + NOISE * np.random.default_rng(seed + 1).standard_normal(array.shape)


def shapes_of(seed: int, a: Array, b: Array, **more: Any) -> tuple[Shape, ...]:
    return residual_shapes(a, noisy(seed, b), NOISE, **more)


def row(a: Array, seed: int) -> Array:
    return a * (1 + 0.01 * drawn(seed + 2, *a.shape[:-1], 1))


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def with_index(a: Array, seed: int) -> Array:
    b = a.copy()
    b[..., 3] += 0.1 * drawn(seed + 2, *a.shape[:-1])
    return b


def with_border(a: Array, seed: int) -> Array:
    b = a.copy()
    b[:, 0], b[:, -1] = b[:, 0] + 1, b[:, -1] * 2
    b[:, :, 0], b[:, :, -1] = b[:, :, 0] - 1, b[:, :, -1] * 3
    return b


def with_triangle(a: Array, seed: int) -> Array:
    hidden = np.triu(np.ones(a.shape[-2:], bool), 1)
    return np.where(hidden, a + 1, a)


def half_turned(a: Array, seed: int) -> Array:
    return np.concatenate([a[..., : a.shape[-1] // 2], -a[..., a.shape[-1] // 2 :]], -1)


def shuffled(a: Array, seed: int) -> Array:
    order = np.random.default_rng(seed).permutation(a.shape[-1] - 1)
    return a[..., [*(order + 1), 0]]


PLANTED: dict[str, Callable[[Array, int], Array]] = {
    "scale": lambda a, seed: a * 1.0007,
    "zeros": lambda a, seed: 0 * a,
    "offset": lambda a, seed: a + 1e-3,
    "affine": lambda a, seed: 1.1 * a + 0.3,
    "row scale": row,
    "channel offset": lambda a, seed: a + 0.01 * drawn(seed + 2, a.shape[-1]),
    "channel scale": lambda a, seed: a * (1 + 0.01 * drawn(seed + 2, a.shape[-1])),
    "channel affine": lambda a, seed: a * (1 + 0.1 * drawn(seed + 2, a.shape[-1])) + drawn(seed + 3, a.shape[-1]),
    "index": with_index,
    "border": with_border,
    "triangle": with_triangle,
    "sign": half_turned,
    "transposed": lambda a, seed: a[:, :8].swapaxes(1, 2),
    "permutation": shuffled,
}


@pytest.mark.parametrize("name", PLANTED)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, planes=st.integers(3, 5))
def test_what_is_planted_is_found(name: str, seed: int, planes: int) -> None:
    a = drawn(seed, planes, 8, 8 if name == "transposed" else 12)
    found = shapes_of(seed, a, PLANTED[name](a, seed))
    assert found, name
    assert found[0].name == name, found
    assert found[0].p_value < 1e-4 and found[0].r2 > 0.9


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rows=st.integers(1, 40), size=st.sampled_from([1, 2, 3, 4, 8, 33]), level=st.floats(0, 1.5))
def test_noise_has_no_shape(seed: int, rows: int, size: int, level: float) -> None:
    a = drawn(seed, 2, rows, size)
    assert residual_shapes(a, a + level * NOISE * drawn(seed + 1, 2, rows, size), NOISE) == ()


@settings(max_examples=80, deadline=None)
@given(
    seed=seeds,
    rows=st.integers(2, 64),
    size=st.sampled_from([2, 3, 4, 5, 16]),
    level=st.sampled_from([1e-6, 1e-3, 1.0]),
    tails=st.booleans(),
)
def test_random_errors_have_no_shape(seed: int, rows: int, size: int, level: float, tails: bool) -> None:
    """Short rows above all: in a row of two elements, an error points along the reference by accident."""
    a, d = drawn(seed, 2, rows, size), drawn(seed + 1, 2, rows, size)
    d = d**3 if tails else d
    found = residual_shapes(a, a + level * d, NOISE, inputs={"in.0": drawn(seed + 2, 2, rows, size)})
    assert found == ()


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rows=st.integers(12, 64), size=st.sampled_from([2, 3, 4]))
def test_short_rows_that_do_have_a_factor_are_found(seed: int, rows: int, size: int) -> None:
    a = 1 + np.abs(drawn(seed, rows, size))
    found = shapes_of(seed, a, row(a, seed))
    assert any(s.name == "row scale" for s in found), found


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.sampled_from([2, 3, 4, 12]))
def test_one_large_error_is_no_shape_of_them_all(seed: int, size: int) -> None:
    a = drawn(seed, 20, size)
    b = a.copy()
    b[seed % 20, seed % size] += 5
    names = [s.name for s in shapes_of(seed, a, b)]
    assert names[:1] == ["elements"] and not any(n.split(" ")[0] in ("row", "channel", "scale") for n in names)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, wrong=st.sampled_from([1e-6, 1e-12, 1e-3]))
def test_an_epsilon_is_a_factor_for_every_row(seed: int, wrong: float) -> None:
    x = drawn(seed, 4, 8, 16) * np.exp(drawn(seed + 1, 4, 8, 1) - 3)
    weight, bias = drawn(seed + 2, 16), drawn(seed + 3, 16)

    def norm(eps: float) -> Array:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias

    found = shapes_of(seed, norm(1e-5), norm(wrong))
    assert found[0].name == "row scale", found
    assert shapes_of(seed, norm(1e-5), norm(1e-5)) == ()


def test_functions_of_the_input() -> None:
    x = drawn(0, 4, 64)
    [first, *_] = shapes_of(0, gelu(x), gelu_tanh(x), inputs={"in.0": x})
    assert first.name == "function" and first.parameters == {"input": "in.0"}
    # of another tensor it is no function
    assert not [s for s in shapes_of(0, gelu(x), gelu_tanh(x), inputs={"in.0": drawn(1, 4, 64)})]


def test_what_is_handed_on_as_it_is() -> None:
    x, y = drawn(0, 4, 16), drawn(1, 4, 16)
    assert shapes_of(0, gelu(x), x, inputs={"in.0": x})[0].name == "identity"
    [lacking, *_] = shapes_of(0, y + x, y, inputs={"in.0": x, "in.1": drawn(2, 4, 16)})
    assert (lacking.name, lacking.parameters["input"]) == ("input added", "in.0")
    assert lacking.text == "the candidate lacks its input in.0: a residual"
    assert shapes_of(0, y, drawn(3, 4, 16), inputs={"in.0": x}) == ()


REORDERED: dict[str, Callable[[], tuple[Array, Array]]] = {
    "a vector": lambda: (drawn(0, 40), drawn(0, 40)[np.random.default_rng(1).permutation(40)]),
    "shifted": lambda: (drawn(0, 3, 8), np.roll(drawn(0, 3, 8), 1, 1)),
    "halves": lambda: (drawn(0, 3, 8), np.roll(drawn(0, 3, 8), 4, 1)),
    "heads split last": lambda: (
        drawn(0, 2, 6, 32).reshape(2, 6, 4, 8).transpose(0, 2, 1, 3),
        drawn(0, 2, 6, 32).reshape(2, 6, 8, 4).transpose(0, 3, 1, 2),
    ),
    "merged untransposed": lambda: (
        drawn(0, 2, 4, 6, 8).transpose(0, 2, 1, 3).reshape(2, 6, 32),
        drawn(0, 2, 4, 6, 8).reshape(2, 6, 32),
    ),
    "channels last": lambda: (
        drawn(0, 2, 3, 6, 7).reshape(2, -1),
        drawn(0, 2, 3, 6, 7).transpose(0, 2, 3, 1).reshape(2, -1),
    ),
    "interleaved": lambda: (
        drawn(0, 3, 4, 16),
        drawn(0, 3, 4, 16).reshape(3, 4, 2, 8).swapaxes(2, 3).reshape(3, 4, 16),
    ),
    "anywhere": lambda: (drawn(0, 6, 7), np.random.default_rng(1).permutation(drawn(0, 6, 7).ravel()).reshape(6, 7)),
}


@pytest.mark.parametrize("name", REORDERED)
def test_the_same_values_in_another_order(name: str) -> None:
    a, b = REORDERED[name]()
    [found, *_] = shapes_of(0, a, b)
    assert "permutation" in found.text and found.complete
    if found.undo is not None:
        np.testing.assert_array_equal(found.undo(b), a)
    assert not [s for s in shapes_of(0, a, drawn(9, *a.shape)) if "order" in s.text]


def test_values_too_dense_to_tell_are_not_called_reordered() -> None:
    a, b = drawn(0, 20000), drawn(1, 20000)
    assert residual_shapes(a, b, 1e-2) == ()


def test_another_size_is_a_reduction() -> None:
    x = drawn(0, 6, 5)
    [found] = residual_shapes(np.array(x.mean()), x, 1e-8)
    assert found.text.startswith("reduction 'mean' / 'none'") and found.undo is not None
    assert found.undo(x) == pytest.approx(x.mean())
    assert residual_shapes(x, np.array(x.sum()), 1e-8)[0].parameters["reduction"] == "sum"
    assert residual_shapes(np.array(0.123), x, 1e-8) == ()


def test_not_a_number() -> None:
    a = drawn(0, 4, 4)
    assert residual_shapes(a, np.where(a > 1, np.nan, a), 1e-8)[0].name == "not finite"
    masked = np.where(a > 1, -np.inf, a)
    assert residual_shapes(masked, masked, 1e-8) == ()


FACTORS = [
    (math.sqrt(8), "sqrt(8)"),
    (1 / 32, "1/32"),
    (5 / 4, "5/4: ddof"),
    (math.sqrt(4 / 5), "ddof"),
    (0.9, "dropout"),
    (2.0, "2"),
    (1.5, "3/2"),
    (0.4871, None),
    (1.00012, None),
]


@pytest.mark.parametrize(("factor", "name"), FACTORS)
def test_known_factors(factor: float, name: str | None) -> None:
    found = known_factor(factor, 1e-6, [5, 8, 32])
    assert (found is None) if name is None else found is not None and name in found


def test_one_number_alone_says_nothing_unless_its_factor_is_known() -> None:
    a = np.array(0.7)
    assert residual_shapes(a, a * 1.5, 1e-8)[0].parameters["known"] == "3/2"
    assert residual_shapes(a, a * 1.51234, 1e-8) == ()


@pytest.mark.parametrize("mode", ["bfloat16", "float16", "tf32"])
@settings(max_examples=15, deadline=None)
@given(seed=seeds, terms=st.sampled_from([8, 32, 100]))
def test_precision_modes_are_told(mode: str, seed: int, terms: int) -> None:
    x, w = (drawn(seed + i, *s).astype(np.float32) for i, s in enumerate([(6, terms), (terms, 24)]))
    true = x.astype(np.float64) @ w
    product = rounded(x, mode) @ rounded(w, mode)
    found = precision_mode(true, product.astype(np.float32), NOISE)
    assert found is not None and ("bfloat16" in found) == (mode == "bfloat16") and mode in found
    assert (precision_mode(true, rounded(product, mode), NOISE) or "").startswith(("bfloat16", "float16", "tf32"))
    # an error of that size which has a shape, float32's own, and one that is far too large
    assert precision_mode(true, true * (1 + 2.0**-9)) is None
    assert precision_mode(true, (x @ w).astype(np.float32), NOISE) is None
    assert precision_mode(true, product + 0.1 * drawn(seed, *true.shape)) is None


def test_a_reference_that_is_coarse_itself_is_no_evidence() -> None:
    x = rounded(drawn(0, 64), "bfloat16")
    assert precision_mode(x, rounded(x * 1.1, "bfloat16")) is None


def test_orders_in_words() -> None:
    assert describe_order(np.roll(np.arange(7), -2)) == "shifted by 2"
    assert describe_order([1, 0, 2]) == "2 of 3 exchanged: 0 and 1"
    gates = np.arange(12).reshape(4, 3)[[1, 0, 2, 3]].ravel()
    assert describe_order(gates) == "parts 0 and 1 of 4 swapped"
    assert describe_order(np.arange(8).reshape(2, 4).T.ravel()) == "interleaved by 4"


def test_nothing_costs_much() -> None:
    a = drawn(0, 64, 64, 64).astype(np.float32)
    b = a.copy()
    b[3] += 1
    assert residual_shapes(a, b, 1e-8)[0].name in ("index", "offset")
