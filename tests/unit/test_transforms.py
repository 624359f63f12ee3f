"""The steps between one framework's parameters and another's: what undoes what, and what a damaged map may not do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope.adapters.base import Array
from twinscope.errors import OptionError, WeightError
from twinscope.weights import transforms
from twinscope.weights.transforms import (
    Arrange,
    Cast,
    Chain,
    Concat,
    Constant,
    Divide,
    Each,
    Function,
    Interleave,
    Normalize,
    Normed,
    Omit,
    Permute,
    Reorder,
    Reshape,
    Split,
    Squeeze,
    Sum,
    Tie,
    Transform,
    Transpose,
    Unsqueeze,
    Untie,
    describe,
    dtype_of,
    from_json,
    inverted,
    register_transform,
    run,
    simplified,
    to_json,
)

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64")
register_transform("tests.negated", lambda *arrays: [-a for a in arrays], lambda *arrays: [-a for a in arrays])
register_transform("tests.one_way", lambda a: a)

# -- random chains that fit --------------------------------------------------------------------------------------------


def numbered(shape: Sequence[int], dtype: str = "float32", start: int = 1) -> Array:
    """Every element another small whole number: exact in every dtype, so that any change of order is seen."""
    return np.arange(start, start + int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(dtype_of(dtype))


@st.composite
def originals(draw: st.DrawFn) -> list[Array]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = draw(st.integers(1, 3))
    return [numbered(shape, dtype, 1 + i) for i in range(count)]


def orders(length: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(length)).map(tuple)


@st.composite
def grids(draw: st.DrawFn, extent: int) -> tuple[int, ...]:
    sizes = []
    while extent > 1 and len(sizes) < 3:
        sizes.append(draw(st.sampled_from([n for n in range(1, extent + 1) if extent % n == 0])))
        extent //= sizes[-1]
    return (*sizes, extent)


@st.composite
def single(draw: st.DrawFn, shape: tuple[int, ...]) -> Transform:
    """A step that keeps everything and is done to each array, all of this shape."""
    rank = len(shape)
    kinds = ["permute", "reshape", "unsqueeze"]
    kinds += ["transpose", "interleave", "reorder"] if rank else []
    kinds += ["squeeze"] if 1 in shape else []
    kind = draw(st.sampled_from(kinds))
    axis = draw(st.integers(0, rank - 1)) if rank else 0
    if kind == "permute":
        return Permute(draw(orders(rank)))
    if kind == "reshape":
        return Reshape(shape, draw(st.sampled_from([shape, shape[::-1], (int(np.prod(shape)),), (1, *shape)])))
    if kind == "unsqueeze":
        return Unsqueeze(draw(st.integers(0, rank)))
    if kind == "transpose":
        return Transpose(axis, draw(st.integers(0, rank - 1)))
    if kind == "interleave":
        sizes = draw(grids(shape[axis]))
        return Interleave(sizes, draw(orders(len(sizes))), axis)
    if kind == "reorder":
        parts = draw(st.sampled_from([n for n in range(1, 5) if shape[axis] % n == 0]))
        return Reorder(draw(orders(parts)), axis)
    return Squeeze(draw(st.sampled_from([i for i, n in enumerate(shape) if n == 1])))


@st.composite
def fitting(draw: st.DrawFn, arrays: list[Array], keeps: bool, depth: int) -> Transform:
    """A step that can be applied to these arrays; one that loses nothing if `keeps` is set."""
    shapes = {a.shape for a in arrays}
    alike = len(shapes) == 1 and len({a.dtype for a in arrays}) == 1
    kinds = ["arrange", "each"] if depth < 3 else ["arrange"]
    kinds += ["single", "single"] if len(shapes) == 1 else []
    kinds += ["concat"] if alike and arrays[0].ndim else []
    kinds += ["tie"] if len(arrays) == 1 else []
    kinds += ["split"] if len(arrays) == 1 and arrays[0].ndim else []
    kinds += ["constant"] if not arrays else []
    if not keeps:
        kinds += ["cast"]
        kinds += ["sum"] if alike else []
        kinds += ["divide"] if len(arrays) == 1 else []
        kinds += ["omit"] if len(arrays) == 1 and arrays[0].size == 0 else []
    kind = draw(st.sampled_from(kinds))
    if kind == "single":
        return draw(single(arrays[0].shape))
    if kind == "arrange":
        return Arrange(draw(orders(len(arrays))))
    if kind == "constant":
        return Constant(1.0, (2,), "float32")
    if kind == "tie":
        return Tie(draw(st.integers(1, 3)))
    if kind == "cast":
        return Cast(str(arrays[0].dtype), "float64") if alike else Arrange(tuple(range(len(arrays))))
    if kind == "sum":
        return Sum(len(arrays))
    if kind == "divide":
        return Divide(draw(st.integers(1, 3)))
    if kind == "omit":
        return Omit(0.0, arrays[0].shape, str(arrays[0].dtype))
    if kind == "each":
        return draw(side_by_side(arrays, keeps, depth))
    axis = draw(st.integers(0, arrays[0].ndim - 1))
    if kind == "concat":
        return Concat(tuple(a.shape[axis] for a in arrays), axis)
    extent = arrays[0].shape[axis]
    cuts = sorted(draw(st.lists(st.integers(0, extent), max_size=2)))
    return Split(tuple(b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)), axis)


@st.composite
def side_by_side(draw: st.DrawFn, arrays: list[Array], keeps: bool, depth: int) -> Transform:
    cut = draw(st.integers(0, len(arrays)))
    groups = [arrays[:cut], arrays[cut:]]
    made = [draw(chains_from(group, keeps, 2, depth + 1)) for group in groups]
    return Each(
        tuple(chain for chain, _ in made), tuple(len(g) for g in groups), tuple(len(outcome) for _, outcome in made)
    )


@st.composite
def chains_from(
    draw: st.DrawFn, arrays: list[Array], keeps: bool, most: int, depth: int = 0
) -> tuple[Chain, list[Array]]:
    chain: Chain = ()
    for _ in range(draw(st.integers(0, most))):
        if sum(a.size for a in arrays) > 2000 or len(arrays) > 8:
            break
        step = draw(fitting(arrays, keeps, depth))
        chain, arrays = (*chain, step), step.apply(arrays)
        if draw(st.booleans()):  # what `simplified` is for
            try:
                chain, arrays = (*chain, step.inverse()), step.inverse().apply(arrays)
            except WeightError:  # a constant that went into a sum does not come out again
                assert not keeps
    return chain, arrays


@st.composite
def cases(draw: st.DrawFn, keeps: bool) -> tuple[list[Array], Chain]:
    arrays = draw(originals())
    chain, _ = draw(chains_from(arrays, keeps, 5))
    return arrays, chain


def same(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return len(found) == len(expected) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(found, expected, strict=True)
    )


# -- laws --------------------------------------------------------------------------------------------------------------


@given(cases(keeps=True))
@settings(deadline=None, max_examples=300)
def test_the_inverted_chain_gives_back_what_the_chain_was_given(case: tuple[list[Array], Chain]) -> None:
    arrays, chain = case
    before = [a.copy() for a in arrays]
    assert same(run(inverted(chain), run(chain, arrays)), before)
    assert same(arrays, before), "a step wrote to what it was given"


@given(cases(keeps=False))
@settings(deadline=None, max_examples=300)
def test_inverting_twice_simplifying_and_saving_change_nothing(case: tuple[list[Array], Chain]) -> None:
    arrays, chain = case
    assert inverted(inverted(chain)) == chain
    assert from_json(json.loads(json.dumps(to_json(chain), allow_nan=False))) == chain
    shorter = simplified(chain)
    assert same(run(shorter, arrays), run(chain, arrays))
    assert simplified(shorter) == shorter
    assert isinstance(describe(chain), str)


EXAMPLES: list[tuple[Transform, list[Array]]] = [
    (Transpose(), [numbered((2, 3))]),
    (Transpose(0, 2), [numbered((2, 3, 4))]),
    (Permute((2, 0, 1)), [numbered((2, 3, 4))]),
    (Permute(()), [numbered(())]),
    (Reshape((2, 3), (3, 2)), [numbered((2, 3))]),
    (Squeeze(1), [numbered((2, 1, 3))]),
    (Unsqueeze(2), [numbered((2, 3))]),
    (Unsqueeze(0), [numbered(())]),
    (Interleave((3, 2, 4), (2, 0, 1), 1), [numbered((2, 24))]),
    (Reorder((1, 2, 0), 1), [numbered((2, 6))]),
    (Split((1, 0, 2), 1), [numbered((2, 3))]),
    (Concat((1, 2)), [numbered((1, 3)), numbered((2, 3))]),
    (Tie(2), [numbered((2,))]),
    (Untie(2), [numbered((2,)), numbered((2,))]),
    (Divide(3), [numbered((2,))]),
    (Arrange((2, 0, 1)), [numbered((n,)) for n in (1, 2, 3)]),
    (Constant(0.5, (2,), "bfloat16"), []),
    (Omit(0.5, (2,), "bfloat16"), [np.full(2, 0.5, ml_dtypes.bfloat16)]),
    (Each(((Transpose(),), (), (Split((1, 1)),)), (1, 1, 1), (1, 1, 2)), [numbered((2, 3))] * 3),
    (Function("tests.negated"), [numbered((2,))]),
]
#: Steps that lose something, or round: their laws are below.
LOSSY: list[tuple[Transform, list[Array]]] = [
    (Cast("float32", "bfloat16"), [numbered((2,))]),
    (Sum(2), [numbered((2,)), numbered((2,))]),
    (Normed(1, (3,)), [numbered((3,)), numbered((2, 3))]),
    (Normed(None, ()), [numbered(()), numbered((2, 3))]),
    (Normalize(0, (2, 1)), [numbered((2, 3))]),
]
ALL = EXAMPLES + LOSSY
named = pytest.mark.parametrize(("step", "arrays"), ALL, ids=[str(step) for step, _ in ALL])


def test_every_step_has_an_example() -> None:
    assert {type(step).__name__.lower() for step, _ in ALL} == set(transforms._BY_NAME)


@pytest.mark.parametrize(("step", "arrays"), EXAMPLES, ids=[str(step) for step, _ in EXAMPLES])
def test_a_step_is_undone_by_its_inverse(step: Transform, arrays: list[Array]) -> None:
    assert same(step.inverse().apply(step.apply(arrays)), arrays)


@named
def test_a_step_is_read_as_it_was_written(step: Transform, arrays: list[Array]) -> None:
    assert step.inverse().inverse() == step
    for chain in ((step,), (step, step.inverse()), (Each(((step,), ()), (1, 1), (1, 1)),)):
        assert from_json(json.loads(json.dumps(to_json(chain)))) == chain
    assert hash(step) == hash(from_json(to_json((step,)))[0])


@named
def test_a_step_and_its_inverse_simplified_change_nothing(step: Transform, arrays: list[Array]) -> None:
    """What cancels on paper need not cancel: 1 + 2 does not tell its terms."""
    beside = Each(((step,), (Transpose(),)), (len(arrays), 1), (len(step.apply(arrays)), 1))
    for first, given_arrays in ((step, arrays), (beside, [*arrays, numbered((2, 3))])):
        chain = (first, first.inverse())
        expected, found = run(chain, given_arrays), run(simplified(chain), given_arrays)
        assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6)


def test_a_cast_gives_back_what_it_did_not_round() -> None:
    there = Cast("float32", "bfloat16")
    kept, rounded = np.float32([1.5]), np.float32([1.0001])
    (back,) = run((there, there.inverse()), [kept])
    assert back.dtype == np.float32 and back.tolist() == [1.5]
    assert run((there, there.inverse()), [rounded])[0].tolist() == [1.0]
    assert run((there, Cast("bfloat16", "float32"), there), [rounded])[0] == there.apply([rounded])[0]
    assert simplified((there, there.inverse())) == (there, there.inverse())


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([1e6], "float32", "float16"),
        ([1e39], "float64", "bfloat16"),
        ([300], "int64", "uint8"),
        ([-1], "int32", "uint8"),
        ([2**40], "int64", "int32"),
        ([0.5], "float32", "int32"),
        ([float("nan")], "float32", "int64"),
        ([2], "int64", "bool"),
        ([1j], "complex64", "float32"),
    ],
)
def test_a_cast_refuses_what_the_other_dtype_does_not_have(values: list[Any], source: str, target: str) -> None:
    with pytest.raises(WeightError, match=rf"(?s)\[1\].*{source}"):
        Cast(source, target).apply([np.array(values, source)])


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([6e4, float("nan"), float("inf")], "float32", "float16"),
        ([200], "int64", "uint8"),
        ([2.0], "float32", "int32"),
        ([1, 0], "int64", "bool"),
        ([2**40], "int64", "float32"),
        ([1.0], "float32", "complex64"),
        ([1.5], "bfloat16", "float16"),
    ],
)
def test_a_cast_takes_what_the_other_dtype_has(values: list[Any], source: str, target: str) -> None:
    (made,) = Cast(source, target).apply([np.array(values).astype(dtype_of(source))])
    np.testing.assert_array_equal(made.astype(np.complex128), np.array(values).astype(np.complex128).round(1))


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2), min_size=1, max_size=4))
def test_divided_and_summed_is_the_same_and_summed_and_divided_has_the_same_sum(terms: list[list[float]]) -> None:
    arrays = [np.array(t, "float32") for t in terms]
    total = Sum(len(arrays))
    (before,) = total.apply(arrays)
    np.testing.assert_array_equal(run((total.inverse(), total), [before])[0], before)
    again = total.inverse().apply([before])
    assert len(again) == len(arrays)
    np.testing.assert_array_equal(total.apply(again)[0], before)
    assert simplified((total, total.inverse())) == (total, total.inverse())
    assert simplified((total.inverse(), total)) == ()


@given(
    st.lists(st.floats(-1e3, 1e3, width=16), min_size=6, max_size=6),
    st.sampled_from([(0, (2,)), (0, (2, 1)), (1, (3,)), (1, (1, 3)), (None, ()), (None, (1,))]),
    st.sampled_from(["float32", "float64", "bfloat16", "float16"]),
)
@settings(deadline=None)
def test_normalized_and_normed_is_the_same_weight(
    values: list[float], how: tuple[int | None, tuple[int, ...]], dtype: str
) -> None:
    weight = np.array(values).reshape(2, 3).astype(dtype_of(dtype))
    rounding = 4 * float(ml_dtypes.finfo(dtype_of(dtype)).eps)
    small = float(ml_dtypes.finfo(dtype_of(dtype)).tiny)
    step = Normalize(*how)
    magnitude, direction = step.apply([weight])
    assert magnitude.shape == how[1] and magnitude.dtype == direction.dtype == weight.dtype
    (back,) = step.inverse().apply([magnitude, direction])
    assert back.dtype == weight.dtype
    wide = weight.astype(np.float64)
    np.testing.assert_allclose(back.astype(np.float64), wide, rtol=rounding, atol=small)
    # the other way round: another magnitude and direction, and the same weight
    assert simplified((step.inverse(), step)) == (step.inverse(), step)
    assert simplified((step, step.inverse())) == ()


def test_rows_of_zeros_survive_weight_normalization() -> None:
    weight = np.float32([[0, 0], [3, 4]])
    magnitude, direction = Normalize(0, (2, 1)).apply([weight])
    assert np.linalg.norm(direction, axis=1).all(), "a framework would divide by zero"
    np.testing.assert_allclose(Normed(0, (2, 1)).apply([magnitude, direction])[0], weight, rtol=1e-6)
    assert not Normed(0, (2, 1)).apply([np.ones((2, 1), "float32"), weight])[0][0].any()


def test_a_constant_is_left_out_and_filled_in_again() -> None:
    filled = Constant(0.1, (2, 2), "float16")
    (made,) = filled.apply([])
    assert made.dtype == np.float16 and filled.inverse().apply([made]) == []
    made[0, 1] = 0.2
    with pytest.raises(WeightError, match=r"\[2, 2\] cannot be left out: it is not 0.1 throughout"):
        filled.inverse().apply([made])
    assert Omit(1.0, (0,), "float32").apply([np.zeros(0, "float32")]) == []


def test_tied_arrays_must_be_equal_and_nan_equals_itself() -> None:
    tied = Tie(3).apply([np.array([np.nan, 1], ml_dtypes.bfloat16)])
    assert len(Untie(3).apply([a.copy() for a in tied])) == 1
    with pytest.raises(WeightError, match="2 tensors that are to become one are not equal"):
        Untie(2).apply([np.float32([1, 2]), np.float32([1, 3])])
    with pytest.raises(WeightError, match=r"\[2\] float32 and \[2\] int32"):
        Untie(2).apply([np.zeros(2, "float32"), np.zeros(2, "int32")])


def test_what_only_moves_is_a_view_and_costs_no_memory() -> None:
    weight = numbered((2, 1, 6))
    chain = (Permute((2, 0, 1)), Squeeze(2), Transpose(), Unsqueeze(0), Split((1, 5), 2), Arrange((1, 0)))
    assert all(np.shares_memory(a, weight) for a in run(chain, [weight]))
    assert not np.shares_memory(Reorder((1, 0), 2).apply([weight])[0], weight)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 2, 1)])
def test_nothing_at_all_is_carried_too(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, ml_dtypes.bfloat16)
    for chain in (
        (Permute(tuple(range(len(shape)))[::-1]),),
        (Unsqueeze(0),),
        (Tie(2),),
        (Cast("bfloat16", "float32"),),
    ):
        assert same(run((*chain, *inverted(chain)), [array]), [array])
    if shape:
        extent = shape[0]
        for step in (Split((extent, 0)), Interleave((extent, 1), (1, 0)), Reorder((0,))):
            assert same(run((step, step.inverse()), [array]), [array])


# -- simplified --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((), ()),
        ((Each((), (), ()), Arrange(())), ()),
        ((Arrange((1, 0)), Arrange((1, 0))), ()),
        ((Arrange((1, 2, 0)), Arrange((1, 2, 0))), (Arrange((2, 0, 1)),)),
        ((Arrange((1, 2, 0)), Arrange((1, 0, 2))), (Arrange((2, 1, 0)),)),
        ((Each(((Tie(2),), (Tie(2),)), (1, 1), (2, 2)),), (Each(((Tie(2),), (Tie(2),)), (1, 1), (2, 2)),)),
        ((Arrange((1, 0)), Arrange((0,))), (Arrange((1, 0)),)),  # does not fit, and is not made to
        ((Cast("float32", "float32"),), ()),
        ((Each(((Transpose(),), (Transpose(),)), (1, 1), (1, 1)), Transpose()), ()),
        ((Each(((Squeeze(0), Unsqueeze(0)), ()), (1, 1), (1, 1)),), ()),
        ((Tie(2), Untie(2)), ()),
        ((Function("f"), Function("f", True)), (Function("f"), Function("f", True))),
        (
            (Each(((Sum(2),), ()), (2, 1), (1, 1)), Each(((Divide(2),), ()), (1, 1), (2, 1))),
            (Each(((Sum(2),), ()), (2, 1), (1, 1)), Each(((Divide(2),), ()), (1, 1), (2, 1))),
        ),
    ],
)
def test_simplified(chain: Chain, expected: Chain) -> None:
    assert simplified(chain) == expected


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "shapes"),
    [
        (Transpose(), [()]),
        (Transpose(), [(3,)]),
        (Permute((1, 0)), [(2, 3, 4)]),
        (Permute(()), [(1,)]),
        (Reshape((6,), (2, 3)), [(3, 2)]),
        (Squeeze(0), [(2, 1)]),
        (Squeeze(2), [(1, 1)]),
        (Unsqueeze(3), [(2, 2)]),
        (Interleave((2, 3), (1, 0)), [(5,)]),
        (Interleave((2, 3), (1, 0), 1), [(6,)]),
        (Reorder((1, 0)), [(3,)]),
        (Reorder((1, 0)), [()]),
        (Split((1, 2)), [(4,)]),
        (Split((1, 2), 1), [(3,)]),
        (Concat((1, 2)), [(1,), (3,)]),
        (Concat((1, 1)), [(1, 2), (1, 3)]),
        (Untie(2), [(2,), (1, 2)]),
        (Sum(2), [(3,), (1,)]),  # numpy would broadcast
        (Normed(0, (2,)), [(3,), (2, 2)]),
        (Normed(0, (3,)), [(3,), (2, 2)]),
        (Normed(2, (1,)), [(1,), (2, 2)]),
        (Normalize(0, (3,)), [(2, 2)]),
        (Normalize(2, (1,)), [(2, 2)]),
        (Omit(0.0, (2,), "float32"), [(3,)]),
    ],
    ids=str,
)
def test_an_array_that_does_not_fit_is_named_by_its_shape(step: Transform, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(WeightError) as caught:
        step.apply([np.zeros(shape, "float32") for shape in shapes])
    assert any(str(list(shape)) in str(caught.value) for shape in shapes)


def test_dtypes_that_differ_are_not_mixed() -> None:
    halves = [np.zeros(1, "float16"), np.zeros(1, ml_dtypes.bfloat16)]
    for step in (Concat((1, 1)), Sum(2), Untie(2)):
        with pytest.raises(WeightError, match=r"\[1\] float16 and \[1\] bfloat16"):
            step.apply(halves)
        assert len(step.apply([halves[1], halves[1]])) == 1


@named
def test_another_number_of_arrays_is_refused(step: Transform, arrays: list[Array]) -> None:
    if not transforms._each_alone(step) and not isinstance(step, Function):
        with pytest.raises(WeightError, match=f"takes {len(arrays)} arrays and was given {len(arrays) + 1}"):
            step.apply([*arrays, np.zeros(1)])


def test_chains_side_by_side_must_give_what_they_promise() -> None:
    with pytest.raises(WeightError, match="gave 2 arrays, not 1"):
        Each(((Tie(2),),), (1,), (1,)).apply([np.zeros(2)])


# -- the user's own ----------------------------------------------------------------------------------------------------


def test_a_function_of_the_user() -> None:
    step = register_transform("tests.halved", lambda a: a / 2, lambda a: a * 2)
    assert run((step, step.inverse()), [np.array([3.0])])[0].tolist() == [3.0]
    with pytest.raises(WeightError, match=r"'tests\.one_way' has no inverse"):
        Function("tests.one_way").inverse().apply([np.zeros(1)])
    with pytest.raises(WeightError, match=r"'tests\.unheard', which is not registered"):
        Function("tests.unheard").apply([np.zeros(1)])
    with pytest.raises(OptionError, match="not callable"):
        register_transform("tests.wrong", 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="name"):
        register_transform(3, abs)  # type: ignore[arg-type]


def test_a_function_may_write_to_what_it_is_given_without_changing_the_reference() -> None:
    def padded(a: Array) -> Array:
        a[0] = 0
        return a

    weight = np.ones(2)
    assert register_transform("tests.padded", padded).apply([weight])[0].tolist() == [0, 1]
    assert weight.tolist() == [1, 1]


@pytest.mark.parametrize("returned", [None, {"a": 1}, [None]])
def test_a_function_that_returns_no_array_is_refused(returned: Any) -> None:
    with pytest.raises(WeightError, match=r"'tests\.nothing' returned"):
        register_transform("tests.nothing", lambda a: returned).apply([np.zeros(1)])


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "float64", "complex64", "bfloat16", "float8_e4m3fn", "int4"]
)
def test_a_dtype_is_known_by_its_name(name: str) -> None:
    assert dtype_of(name).name == name


@pytest.mark.parametrize(
    "name", ["", "float31", "object", "str", "U5", "S9999999999", "M8[s]", "void", "finfo", "f4,f4"]
)
def test_what_is_no_dtype_of_numbers_is_refused(name: str) -> None:
    for refused in (lambda: dtype_of(name), lambda: Cast("float32", name), lambda: Constant(0.0, (1,), name)):
        with pytest.raises(WeightError, match="dtype"):
            refused()


# -- damaged and hostile maps ------------------------------------------------------------------------------------------

JUNK: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 10**9, 2**31, 10**30, -0.5, 0.5, 1e300, float("inf"), float("nan")),
    *("", "x", "float32", "\ud800", "object", "y" * 5000),
    *([], [0], [1], [0, 0], [1, 0], [0, 2], [-1], [1.0], [True], [None], [[1]], [10**9, 10**9], [0, 10**9], [2**31]),
    *([1] * 33, list(range(2000)), [[]], [[], []], [[{}]], [[{"step": "tie", "times": 3}]], {}, {"step": "squeeze"}),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SAMPLES = [numbered(()), numbered((2,)), numbered((2, 3)), numbered((1, 2, 6), "bfloat16"), np.zeros((0, 2), "int64")]


DEFAULTS = {
    (type(step), field.name)
    for step, _ in ALL
    for field in dataclasses.fields(step)
    if field.default is not dataclasses.MISSING
}


def only_refused(steps: Any) -> None:
    """Read it, and use it if it can be read: nothing but `WeightError` may come of it."""
    try:
        chain = from_json(steps)
    except WeightError as error:
        assert len(str(error)) < 3000
        return
    assert from_json(to_json(chain)) == chain
    for used in (chain, inverted(chain), simplified(chain), inverted(inverted(chain))):
        describe(used)
        if any(isinstance(s, Constant) and np.prod(s.shape, dtype=float) > 1e6 for s in used):
            continue  # legal, and slow
        for arrays in ([], *([a] for a in SAMPLES), SAMPLES[1:3], [SAMPLES[2]] * 2, SAMPLES[:3]):
            try:
                run(used, arrays)
            except WeightError as error:
                assert error.hint


@named
def test_a_step_with_a_field_replaced_dropped_or_added_is_refused_or_harmless(
    step: Transform, arrays: list[Array]
) -> None:
    (written,) = to_json((step,))
    for key in written:
        for junk in JUNK:
            only_refused([{**written, key: junk}])
        without = [{k: v for k, v in written.items() if k != key}]
        if (type(step), key) in DEFAULTS:
            only_refused(without)
        else:
            with pytest.raises(WeightError):
                from_json(without)
    with pytest.raises(WeightError, match="cannot be read"):
        from_json([{**written, "more": 1}])


@given(json_values)
@settings(deadline=None, max_examples=300)
def test_any_json_at_all_is_refused_or_harmless(value: Any) -> None:
    only_refused(value)
    only_refused([value])
    only_refused([{"step": value}])


@given(st.sampled_from([step for step, _ in ALL]), st.data())
@settings(deadline=None, max_examples=300)
def test_steps_with_random_fields_are_refused_or_harmless(step: Transform, data: st.DataObject) -> None:
    (written,) = to_json((step,))
    key = data.draw(st.sampled_from(sorted(written)))
    small = st.lists(st.integers(-1, 5), max_size=4)
    only_refused([{**written, key: data.draw(json_values | small | st.integers(-1, 5) | st.just([to_json((step,))]))}])


@pytest.mark.parametrize(
    "given_step",
    [
        {"step": "constant", "value": 0.0, "shape": [10**9, 10**9], "dtype": "float32"},
        {"step": "constant", "value": 0.0, "shape": [2**30], "dtype": "float32"},
        {"step": "constant", "value": 300, "shape": [1], "dtype": "uint8"},
        {"step": "constant", "value": 0.5, "shape": [1], "dtype": "int32"},
        {"step": "constant", "value": 1e39, "shape": [1], "dtype": "float32"},
        {"step": "constant", "value": float("nan"), "shape": [1], "dtype": "float32"},
        {"step": "tie", "times": 10**9},
        {"step": "tie", "times": 0},
        {"step": "divide", "terms": 10**9},
        {"step": "sum", "terms": 0},
        {"step": "interleave", "sizes": [2, 3], "order": [0, 0]},
        {"step": "interleave", "sizes": [2, 3], "order": [0, 1, 2]},
        {"step": "interleave", "sizes": [], "order": []},
        {"step": "reorder", "order": []},
        {"step": "reorder", "order": [0, 2]},
        {"step": "permute", "axes": [0, 0]},
        {"step": "permute", "axes": [1]},
        {"step": "arrange", "order": [0, 0]},
        {"step": "reshape", "source": [2, 3], "target": [5]},
        {"step": "split", "sizes": []},
        {"step": "concat", "sizes": []},
        {"step": "transpose", "first": -1},
        {"step": "each", "chains": [], "takes": [1], "gives": [1]},
        {"step": "each", "chains": [[]], "takes": [1, 1], "gives": [1]},
        {"step": "each", "chains": 5, "takes": [1], "gives": [1]},
        {"step": "each", "chains": [5], "takes": [1], "gives": [1]},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_on_reading(given_step: dict[str, Any]) -> None:
    with pytest.raises(WeightError):
        from_json([given_step])


def test_chains_within_chains_without_end_are_refused() -> None:
    for depth, legal in ((8, True), (9, False), (5000, False)):
        steps: list[Any] = []
        for _ in range(depth):
            steps = [{"step": "each", "chains": [steps], "takes": [1], "gives": [1]}]
        if legal:
            assert from_json(to_json(from_json(steps))) == from_json(steps)
        else:
            with pytest.raises(WeightError, match="deep"):
                from_json(steps)
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(WeightError):
        from_json([{"step": "split", "sizes": nested}])


def test_axes_beyond_what_numpy_has_are_refused() -> None:
    with pytest.raises(WeightError, match="does not fit"):
        run((Unsqueeze(0),) * 40, [np.zeros(1)])
    assert run((Unsqueeze(0),) * 10, [np.zeros(1)])[0].ndim == 11


def test_a_step_of_the_wrong_types_is_refused_when_it_is_made() -> None:
    for made in (
        lambda: Split([1, 2]),  # type: ignore[arg-type]
        lambda: Split((np.int64(1),)),  # what JSON could not hold
        lambda: Transpose(True),
        lambda: Each(((1,),), (1,), (1,)),  # type: ignore[arg-type]
    ):
        with pytest.raises(WeightError, match="is illegal"):
            made()


def test_an_unknown_step_is_answered_with_the_nearest() -> None:
    with pytest.raises(WeightError, match=r"(?s)'tranpose'.*did you mean 'transpose'"):
        from_json([{"step": "tranpose"}])


def test_steps_are_values() -> None:
    assert all(dataclasses.is_dataclass(step) and len({step, step.inverse().inverse()}) == 1 for step, _ in ALL)
