"""The C kernel against numpy, and every way in which it may be missing. Skips what needs it where it was not built."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinscope import kernels, metrics
from twinscope.metrics import array_stats, compare_arrays
from twinscope.records import Stats

ROOT = Path(__file__).parents[2]
PACKAGE = Path(kernels.__file__).parent
BLOCK, LANES = 512, 32  # of _kernels.c
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1e-40, 3e38, -3e38, 1e-20, 1e15, 1.0]
SIZES = sorted({max(1, edge + d) for edge in (1, LANES, BLOCK // 2, BLOCK, 3 * BLOCK, 1 << 16) for d in (-1, 0, 1)})
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def _wanted() -> Iterator[None]:
    """Whatever the environment says of the other tests: these are about the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(kernels.OFF, raising=False)
        yield


@pytest.fixture(scope="module")
def one_pass() -> Any:
    found = kernels.load()
    if found is None:
        pytest.skip("the kernel was not built")
    return found.stats


def noise(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * 3 + 0.5).astype(dtype)


def expected(array: Any) -> list[float]:
    """The same five numbers, of finite values, in float64."""
    wide = array.astype(np.float64).ravel()
    width = array.dtype.itemsize
    bits = int(np.ascontiguousarray(array).view(f"u{width}").astype(np.uint64).sum()) % (1 << 8 * width)
    return [float(wide.min()), float(wide.max()), float(wide.sum()), float(wide @ wide), float(bits)]


def agree(got: Any, wanted: list[float], scale: float) -> bool:
    exact = (0, 1, 4)
    return got is not None and all(got[i] == wanted[i] for i in exact) and all(
        abs(got[i] - wanted[i]) <= 3e-7 * size for i, size in ((2, scale), (3, wanted[3]))
    )  # fmt: skip


def check(one_pass: Any, array: Any) -> None:
    wanted = expected(array)
    scale = float(np.abs(array.astype(np.float64)).sum())
    got = one_pass(array)
    assert agree(got, wanted, scale), (got, wanted)


def both_ways(array: Any, one_pass: Any) -> tuple[Stats, Stats]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_one_pass", one_pass)
        with_kernel = array_stats(array)
        patch.setattr(metrics, "_one_pass", None)
        return with_kernel, array_stats(array)


def check_both_ways(array: Any, one_pass: Any) -> None:
    # The sums as loosely as numpy's way needs it: the l2 of 65535 bfloat16 is 1.7e-6 off there (6e-9 with the kernel).
    # `check` holds the kernel to 3e-7 of float64.
    ours, numpys = both_ways(array, one_pass)
    assert (ours.nan, ours.inf, ours.fingerprint) == (numpys.nan, numpys.inf, numpys.fingerprint)
    for name in ("min", "max"):
        assert getattr(ours, name) == pytest.approx(getattr(numpys, name), rel=0, abs=0, nan_ok=True)
    slack = 1e-6 * numpys.l2 / math.sqrt(array.size)  # a mean is as good as the sum of magnitudes allows
    assert ours.mean == pytest.approx(numpys.mean, rel=1e-6, abs=slack, nan_ok=True)
    assert ours.std == pytest.approx(numpys.std, rel=3e-6, nan_ok=True)
    assert ours.l2 == pytest.approx(numpys.l2, rel=3e-6)


# --------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_around_the_borders_of_blocks(one_pass: Any, size: int, dtype: Any) -> None:
    array = noise(size, dtype)
    check(one_pass, array)
    check_both_ways(array, one_pass)
    # the negative twin: every place counts, the first and last of a block not least
    wanted = expected(array)
    for place in {0, size // 2, size - 1, min(size, BLOCK) - 1}:
        changed = array.copy()
        changed[place] = 1000
        got = one_pass(changed)
        assert got[1] == 1000 and got[4] != wanted[4] and got[3] > wanted[3] + 900_000
        changed[place] = math.nan
        assert math.isnan(one_pass(changed)[3]) and array_stats(changed).nan == 1


@given(
    st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=1, max_size=50),
    st.sampled_from([0, 1, LANES, BLOCK - 7, 2 * BLOCK]),
    st.sampled_from([np.dtype(np.float32), BF16]),
)
@example([math.nan], 0, BF16)
@example([math.inf, -math.inf], BLOCK, np.dtype(np.float32))
@settings(max_examples=150, deadline=None)
def test_special_values_give_what_numpy_gives(one_pass: Any, values: list[float], ahead: int, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        array = np.concatenate([noise(ahead), np.array(values, np.float32)]).astype(dtype)
    check_both_ways(array, one_pass)
    finite = np.isfinite(array.astype(np.float64)).all()
    with_kernel = one_pass(array)
    assert finite or not math.isfinite(with_kernel[3])  # else array_stats would not notice


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_strides(one_pass: Any, data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    dtype = data.draw(st.sampled_from([np.dtype(np.float32), BF16]))
    array = noise(shape, dtype)
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    index = tuple(
        slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.sampled_from([1, 2, 3]))) for n in array.shape
    )
    view = array[index][tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in index)]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (data.draw(st.integers(1, 4)), *view.shape))
    check(one_pass, view)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16], ids=str)
def test_views_as_networks_make_them(one_pass: Any, dtype: Any) -> None:
    qkv = noise((4, 65, 3, 64), dtype)
    wide = noise((5, 4, 700), dtype)
    for view in (
        qkv.transpose(2, 0, 3, 1)[0], qkv[:, :, 1].transpose(0, 2, 1), qkv[:, 1:], wide[:, ::2, :600], wide[..., ::3],
        wide.T, wide[::-1, :, ::-1], np.broadcast_to(wide[0, 0, :3], (50, 3)), wide[:1, :1, :1],
        np.broadcast_to(wide[..., :1], wide.shape), np.asarray(wide[0, 0, 0]),
    ):  # fmt: skip
        check(one_pass, view)
        check_both_ways(view, one_pass)
    other = qkv.copy()
    other[:, :, 2] = 9  # outside of the view: changes nothing
    assert one_pass(other[:, :, 1]) == one_pass(qkv[:, :, 1])
    other[3, 64, 1, 63] = 9  # its last element: does
    assert one_pass(other[:, :, 1]) != one_pass(qkv[:, :, 1])


def test_a_view_is_not_copied(one_pass: Any) -> None:
    import tracemalloc

    view = noise((300, 3, 500))[:, 1]
    tracemalloc.start()
    one_pass(view)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000 < view.nbytes


def test_every_bit_pattern_of_bfloat16(one_pass: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    with np.errstate(invalid="ignore"):  # numpy warns of casting signalling NaNs, with or without the kernel
        check_both_ways(every, one_pass)
    finite = every[np.isfinite(every.astype(np.float32)) & (np.abs(every.astype(np.float32)) < 1e15)]
    check(one_pass, finite)


def test_a_read_only_array_is_read(one_pass: Any) -> None:
    array = noise(100)
    array.flags.writeable = False
    check(one_pass, array)


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_byte_order_and_alignment_change_no_bit(one_pass: Any, size: int) -> None:
    array = noise(size)
    wanted = one_pass(array)
    swapped = array.astype(">f4")
    assert swapped.dtype.byteorder == ">" and one_pass(swapped) == wanted
    assert one_pass(swapped[::-1]) != one_pass(swapped.view("<f4")[::-1])
    for dtype in (np.dtype(np.float32), BF16):
        array = noise(size, dtype)
        raw = np.zeros(array.nbytes + 1, np.uint8)
        unaligned = raw[1:].view(dtype)
        unaligned[...] = array
        assert not unaligned.flags.aligned and one_pass(unaligned) == one_pass(array)


# ---------------------------------------------------------------------------------------------------------- two arrays

PAIR_LANES = 16  # of _kernels.c
PAIR_SIZES = sorted(
    {max(1, e + d) for e in (1, PAIR_LANES, BLOCK, 3 * BLOCK, metrics.CHUNK_BYTES // 4) for d in (-1, 0, 1)}
)
COUNTS = (
    "count", "finite", "nan_reference", "nan_candidate", "inf_reference", "inf_candidate", "nonfinite_mismatch",
    "first_nonfinite_mismatch", "identical", "same_other_layout", "within",
)  # fmt: skip
SIZED = ("max_rel", "mean_rel", "rmse", "rms_reference", "rms_candidate", "mean_abs", "max_abs")


@pytest.fixture(scope="module")
def pair_pass() -> Any:
    found = kernels.load()
    if found is None:
        pytest.skip("the kernel was not built")
    return found.pair


def pair_sums(pair_pass: Any, r: Any, c: Any, atol: float = 0.0, rtol: float = 0.0) -> Any:
    kinds = kernels.PAIR_KINDS
    return pair_pass(r.ctypes.data, kinds[r.dtype], c.ctypes.data, kinds[c.dtype], r.size, atol, rtol)


def check_pair(pair_pass: Any, r: Any, c: Any, atol: float = 0.0, rtol: float = 0.0) -> list[float]:
    """Every sum within 3e-7 of float64's, of the sum of its terms' magnitudes; the rest exactly."""
    got: list[float] = pair_sums(pair_pass, r, c, atol, rtol)
    x, y = r.astype(np.float64), c.astype(np.float64)
    d = c.astype(np.float32) - r.astype(np.float32)
    e, size, wide = np.abs(d), np.abs(r.astype(np.float32)), d.astype(np.float64)
    used = size > 0
    q = np.divide(e, size, out=np.zeros_like(e), where=used)
    for i, terms, scale in (
        (0, x, x), (1, y, np.abs(y) + np.abs(wide)), (2, x * x, x * x), (3, x * y, np.abs(x * y) + x * x),
        (4, y * y, x * x + wide * wide), (5, wide, wide), (6, e, e), (7, wide * wide, wide * wide), (10, q, q),
    ):  # fmt: skip
        slack = 3e-7 * float(np.abs(scale).sum(dtype=np.float64))
        assert got[i] == pytest.approx(float(terms.sum(dtype=np.float64)), rel=0, abs=slack), i
    assert got[8] == float(e.max()) and got[9] == (float(e.argmax()) if e.any() else -1) and got[11] == float(q.max())
    assert got[12] == np.count_nonzero(e[~used])
    assert got[13] == np.count_nonzero(e <= size * np.float32(rtol) + np.float32(atol))
    assert got[14] == (x.tobytes() == y.tobytes())
    return got


def pair_both_ways(r: Any, c: Any, pair_pass: Any, **options: Any) -> metrics.Metrics:
    """What the kernel's way gives, once numpy's way was seen to give the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_pair_pass", pair_pass)
        ours = compare_arrays(r, c, **options)
        patch.setattr(metrics, "_pair_pass", None)
        numpys = compare_arrays(r, c, **options)
    for name in COUNTS:
        assert getattr(ours, name) == getattr(numpys, name), name
    assert (ours.worst, ours.worst_reference) == (numpys.worst, numpys.worst_reference)
    for name in SIZED:
        assert getattr(ours, name) == pytest.approx(getattr(numpys, name), rel=1e-6, nan_ok=True), name
    assert ours.effective_bits == pytest.approx(numpys.effective_bits, abs=1e-5, nan_ok=True)
    assert ours.cosine == pytest.approx(numpys.cosine, abs=1e-6, nan_ok=True)
    for name, scale in (("reference", 0.0), ("candidate", numpys.rms_reference), ("diff", numpys.rmse)):
        slack = 1e-6 * (scale + getattr(numpys, f"rms_{name}", 0.0))
        ours_mean, numpys_mean = getattr(ours, f"mean_{name}"), getattr(numpys, f"mean_{name}")
        assert ours_mean == pytest.approx(numpys_mean, rel=1e-6, abs=slack, nan_ok=True), name
    return ours


@pytest.mark.parametrize("dtypes", [(np.float32, np.float32), (BF16, BF16), (np.float32, BF16), (BF16, np.float32)])
@pytest.mark.parametrize("size", PAIR_SIZES)
def test_pairs_of_sizes_around_the_borders_of_blocks(pair_pass: Any, size: int, dtypes: Any) -> None:
    r = noise(size, dtypes[0])
    c = (r.astype(np.float32) + noise(size, seed=1) * np.float32(1e-2)).astype(dtypes[1])
    first = check_pair(pair_pass, r, c, 1e-3, 1e-3)
    pair_both_ways(r, c, pair_pass, atol=1e-3, rtol=1e-3)
    nearly = r.copy()
    nearly[0] += 1
    assert check_pair(pair_pass, r, nearly)[14] == 0
    same = check_pair(pair_pass, r, r.copy())
    assert same[14] == 1 and same[13] == size and same[6] == same[8] == 0
    # the negative twin: every place counts, the first and last of a block not least
    for place in {0, size // 2, size - 1, min(size, BLOCK) - 1}:
        changed = c.copy()
        changed[place] = 1000
        got = check_pair(pair_pass, r, changed, 1e-3, 1e-3)
        assert got[9] == place and got[8] > 900 and got[7] > first[7] + 800_000 and got[14] == 0
        for bad in (math.nan, math.inf, -math.inf):
            changed[place] = bad
            assert pair_sums(pair_pass, r, changed) is None and pair_sums(pair_pass, changed, c) is None
        assert compare_arrays(r, changed).first_nonfinite_mismatch == (place,)


@given(
    st.lists(st.tuples(*[st.sampled_from(SPECIAL) | st.floats(width=32)] * 2), min_size=1, max_size=40),
    st.sampled_from([0, 1, PAIR_LANES, BLOCK - 7, 2 * BLOCK]),
    st.sampled_from([(np.float32, np.float32), (BF16, BF16), (BF16, np.float32), (np.float16, np.float32)]),
    st.sampled_from([(0.0, 0.0), (0.25, 0.0), (0.0, 1e-3), (1e-8, 1e-5), (1e300, 1e300)]),
    st.booleans(),
)
@example([(0.0, 1.0)], 0, (np.float32, np.float32), (0.0, 1e-3), False)  # no place has a relative error
@example([(1e-45, 1e15)], BLOCK, (np.float32, np.float32), (0.0, 0.0), False)  # |d| / |r| exceeds float32
@settings(max_examples=200, deadline=None)
def test_special_pairs_give_what_numpy_gives(
    pair_pass: Any, pairs: list[tuple[float, float]], ahead: int, dtypes: Any, tolerances: Any, equal_nan: bool
) -> None:
    with np.errstate(all="ignore"):
        r, c = (
            np.concatenate([noise(ahead), np.array(values, np.float32)]).astype(dtype)
            for values, dtype in zip(zip(*pairs, strict=True), dtypes, strict=True)
        )
        options = {"atol": tolerances[0], "rtol": tolerances[1], "equal_nan": equal_nan}
        pair_both_ways(r, c, pair_pass, **options)
        pair_both_ways(r, r.copy(), pair_pass, **options)


@pytest.mark.parametrize("size", [5, BLOCK + 3, 3 * BLOCK])
def test_of_several_largest_differences_the_first_is_named(pair_pass: Any, size: int) -> None:
    r = np.rint(noise(size))
    c = r.copy()
    for place in (size - 1, size // 2, 1):  # each is ahead of those before
        c[place] = r[place] + (4 if place % 2 else -4)
        assert check_pair(pair_pass, r, c)[9] == place
        assert pair_both_ways(r, c, pair_pass).worst == (place,)
    c[size - 2] = r[size - 2] + 5
    assert check_pair(pair_pass, r, c)[9] == size - 2


def test_zeros_in_the_reference_are_left_out_of_relative_errors(pair_pass: Any) -> None:
    r = np.maximum(noise(5000), 0)
    c = r + np.float32(1e-3)
    zeros = int(np.count_nonzero(r == 0))
    assert 1000 < zeros < 4000 and check_pair(pair_pass, r, c)[12] == zeros
    assert check_pair(pair_pass, r, r * np.float32(1.5))[12] == 0  # 0 where both are 0
    assert pair_both_ways(r, c, pair_pass).mean_rel < math.inf
    nothing = pair_both_ways(np.zeros(700, np.float32), np.ones(700, np.float32), pair_pass)
    assert (nothing.max_rel, nothing.mean_rel) == (math.inf, math.inf)
    signed = np.zeros(700, np.float32)
    signed[600] = -0.0
    assert not pair_both_ways(np.abs(signed), signed, pair_pass).identical
    assert pair_both_ways(signed, signed.copy(), pair_pass).identical


def test_what_float32_cannot_add_up_is_refused(pair_pass: Any) -> None:
    r = noise(2000)
    c = r + noise(2000, seed=1)
    assert pair_sums(pair_pass, r, c) is not None
    for scale in (1e25, 1e-25):
        small, large = (x * np.float32(scale) for x in (r, c))
        assert pair_sums(pair_pass, small, large) is None
        pair_both_ways(small, large, pair_pass)
    assert pair_sums(pair_pass, r, r + r * np.float32(1e-7)) is not None
    beside = r * np.float32(1e-13)  # squares of these are fine, those of their differences are not
    assert pair_sums(pair_pass, beside, beside * np.float32(1 + 1e-6)) is None
    pair_both_ways(beside, beside * np.float32(1 + 1e-6), pair_pass)
    assert pair_sums(pair_pass, r * 0, r) is not None
    assert pair_sums(pair_pass, r * np.float32(1e-25), r) is None
    zeros = np.zeros(40, np.float32)
    assert pair_sums(pair_pass, zeros, zeros.copy()) is not None
    assert pair_pass(r.ctypes.data, 2, c.ctypes.data, 0, r.size, 0, 0) is None
    assert pair_pass(r.ctypes.data, 0, c.ctypes.data, 0, 0, 0, 0) is None


@pytest.mark.parametrize("factor", [1e-4, 0.3, -1, 1e4])
def test_a_candidate_of_another_scale_keeps_its_digits(pair_pass: Any, factor: float) -> None:
    r = noise(200_000)
    c = r * np.float32(factor) + noise(200_000, seed=1) * np.float32(factor / 10)
    got = pair_both_ways(r, c, pair_pass)
    wide = c.astype(np.float64)
    assert got.rms_candidate == pytest.approx(float(np.sqrt(np.mean(wide * wide))), rel=3e-7)
    cosine = float(r.astype(np.float64) @ wide / np.linalg.norm(r.astype(np.float64)) / np.linalg.norm(wide))
    assert got.cosine == pytest.approx(cosine, abs=3e-7)


def test_pairs_of_any_layout_give_the_same_numbers(pair_pass: Any) -> None:
    wide = noise((300, 2, 700))
    c = wide[:, 1] + np.float32(1e-3)
    expected = pair_both_ways(wide[:, 1].copy(), c, pair_pass)
    raw = np.zeros(c.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(c.shape)
    unaligned[...] = c
    assert not unaligned.flags.aligned
    for other in (unaligned, c.astype(">f4"), np.asfortranarray(c), c[::-1].copy()[::-1]):
        got = pair_both_ways(wide[:, 1], other, pair_pass)
        assert (got.max_abs, got.worst, got.within) == (expected.max_abs, expected.worst, expected.within)
        assert got.mean_rel == pytest.approx(expected.mean_rel, rel=1e-6)
    assert pair_both_ways(wide[:, 0], c, pair_pass).rmse > 1 > expected.rmse


def test_pairs_do_not_depend_on_threads(pair_pass: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_pair_pass", pair_pass)
    r = noise(1_200_000)
    c = r + noise(r.size, seed=1) * np.float32(1e-5)
    c[900_000] = math.nan
    one = compare_arrays(r, c, threads=1, rtol=1e-5)
    assert all(compare_arrays(r, c, threads=n, rtol=1e-5) == one for n in (2, 3, 5))
    c[7] += 1
    assert compare_arrays(r, c, threads=2, rtol=1e-5) != one


def test_compare_arrays_takes_the_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    answer = [1.0, 1.0, 4.0, 4.0, 4.0, 0.0, 2.0, 1.0, 0.5, 1.0, 8.0, 3.0, 0.0, 2.0, 0.0]

    def pretend(*arguments: Any) -> list[float]:
        seen.append(arguments[4])
        return answer

    r, c = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32) + 1
    monkeypatch.setattr(metrics, "_pair_pass", pretend)
    got = compare_arrays(r, c)
    assert (got.rmse, got.mean_abs, got.max_rel, got.mean_rel, got.within, got.worst) == (0.5, 0.5, 3, 2, 0.5, (1,))
    for dtype in (np.float16, BF16, ">f4", ml_dtypes.float8_e4m3fn):
        assert compare_arrays(r.astype(dtype), c).rmse == 0.5
    assert compare_arrays(r.reshape(2, 2), np.asfortranarray(c.reshape(2, 2))).rmse == 0.5
    assert seen == [4] * 6
    for dtype in (np.float64, np.int32, np.int64, np.complex64):
        assert compare_arrays(r.astype(dtype), c.astype(dtype)).rmse == 1
    assert len(seen) == 6
    answer.clear()
    monkeypatch.setattr(metrics, "_pair_pass", lambda *arguments: pretend(*arguments) or None)
    assert compare_arrays(r, c).rmse == compare_arrays(r, c.astype(BF16)).rmse == 1  # refused: in float64
    assert len(seen) == 8


# ------------------------------------------------------------------------------------------------- what it does not do


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, np.int32, np.uint16, np.int16, np.complex64, ">f2", ml_dtypes.float8_e5m2, "V2"]
)
def test_other_dtypes_are_refused(one_pass: Any, dtype: Any) -> None:
    assert one_pass(np.zeros(40, dtype)) is None
    assert one_pass(np.zeros(40, np.float32)) is not None


def test_empty_arrays_are_refused(one_pass: Any) -> None:
    for shape in ((0,), (3, 0, 2)):
        for dtype in (np.float32, BF16):
            assert one_pass(np.zeros(shape, dtype)) is None
            assert one_pass(np.zeros(shape, dtype).T[::-1]) is None
    assert one_pass(np.zeros((), np.float32)) is not None


def test_array_stats_takes_the_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    answer = [-1.0, 1.0, 0.0, 4.0, 7.0]
    monkeypatch.setattr(metrics, "_one_pass", lambda array: seen.append(array.dtype.name) or answer)
    assert array_stats(np.zeros(4, np.float32)) == Stats(-1.0, 1.0, 0.0, 1.0, 2.0, 0, 0, 7)
    monkeypatch.setattr(metrics, "_one_pass", lambda array: seen.append(array.dtype.name))
    assert array_stats(np.zeros(4, np.float32)) == Stats(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0)  # refused: numpy's way
    assert seen == ["float32", "float32"]
    array_stats(np.zeros(0, np.float32))
    assert len(seen) == 2


# ---------------------------------------------------------------------------------------------------------- its absence


def library() -> Path:
    found = sorted(PACKAGE.glob("_kernels*.so")) + sorted(PACKAGE.glob("_kernels*.dylib"))
    return found[0] if found else PACKAGE / "none"


def test_the_environment_variable_turns_it_off(one_pass: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.OFF, "1")
    assert kernels.load() is None
    for still_on in ("0", ""):
        monkeypatch.setenv(kernels.OFF, still_on)
        assert kernels.load() is not None


def test_metrics_without_it_in_a_fresh_interpreter(one_pass: Any) -> None:
    code = "from twinscope import metrics; import numpy; assert (metrics._one_pass is None) == {}; "
    code += "assert metrics.array_stats(numpy.ones(9, 'f4')).l2 == 3"
    for value, off in (("1", True), ("0", False)):
        environment = {**os.environ, kernels.OFF: value, "PYTHONPATH": str(PACKAGE.parent)}
        subprocess.run([sys.executable, "-c", code.format(off)], env=environment, check=True, timeout=60)


def test_a_missing_or_damaged_library_is_no_error(one_pass: Any, tmp_path: Path) -> None:
    assert kernels.load(tmp_path) is None
    assert kernels.load(tmp_path / "nowhere") is None
    suffix = library().suffix
    (tmp_path / f"_kernels.another{suffix}").write_bytes(b"not a library")
    (tmp_path / f"_kernels.empty{suffix}").touch()
    assert kernels.load(tmp_path) is None
    (tmp_path / f"_kernels.good{suffix}").write_bytes(library().read_bytes())
    found = kernels.load(tmp_path)
    assert found is not None and agree(found.stats(noise(999)), expected(noise(999)), 3000)


def test_a_library_of_another_abi_is_refused(one_pass: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.load() is not None
    monkeypatch.setattr(kernels, "ABI", kernels.ABI + 1)
    assert kernels.load() is None


# ------------------------------------------------------------------------------------------------------------ the build


@pytest.fixture
def hook() -> Any:
    pytest.importorskip("hatchling")
    path = ROOT / "hatch_build.py"
    if not path.exists():
        pytest.skip("not a checkout")
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Screen:
    """What the hook needs of hatchling's application: where it says its one line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def display_warning(self, line: str) -> None:
        self.lines.append(line)


def build(hook: Any, root: Path, version: str) -> tuple[dict[str, Any], list[str]]:
    screen = Screen()
    target = root / hook.SOURCE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((ROOT / hook.SOURCE).read_bytes())
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.KernelHook(str(root), {}, None, None, "", "wheel", screen).initialize(version, data)
    return data, screen.lines


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_the_build_puts_a_library_beside_its_source(one_pass: Any, hook: Any, tmp_path: Path, version: str) -> None:
    data, lines = build(hook, tmp_path, version)
    if lines:
        pytest.skip("no compiler")
    package = (tmp_path / hook.SOURCE).parent
    assert kernels.load(package) is not None
    (built,) = package.glob("_kernels.*[!c]")
    assert sorted(path.name for path in package.iterdir()) == sorted([built.name, "_kernels.c"])
    if version == "editable":
        assert data == {"force_include": {}, "pure_python": True}
    else:
        assert data["force_include"] == {str(built): f"twinscope/{built.name}"}
        assert data["pure_python"] is False and data["tag"].startswith("py3-none-") and "any" not in data["tag"]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", '"unbalanced'])
def test_a_build_without_a_compiler_is_pure_python(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    package = (tmp_path / hook.SOURCE).parent
    build(hook, tmp_path, "standard")  # an older library, which must not get into the wheel
    monkeypatch.setenv("CC", compiler)
    data, lines = build(hook, tmp_path, "standard")
    assert data == {"force_include": {}, "pure_python": True}
    assert len(lines) == 1 and "without the C kernel" in lines[0] and "\n" not in lines[0]
    assert [path.name for path in package.iterdir()] == ["_kernels.c"] and kernels.load(package) is None
