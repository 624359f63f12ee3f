"""metrics.py against straightforward float64 numpy."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope import metrics
from twinscope.errors import OptionError, TwinscopeError
from twinscope.metrics import array_stats, compare_arrays, same_other_layout

CHUNK = metrics.CHUNK_BYTES // 4
FLOATS = [
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip
INTEGERS = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1e-40, 3e38, -3e38, 1e-20, 1.0]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def f32(values: Any) -> Any:
    return np.array(values, np.float32)


def noise(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
    with np.errstate(all="ignore"):
        return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)


def naive(reference: Any, candidate: Any) -> dict[str, float]:
    """The errors over the places where both are finite, in float64."""
    with np.errstate(all="ignore"):
        r, c = (np.asarray(x).astype(np.float64).reshape(-1) for x in (reference, candidate))
        good = np.isfinite(r) & np.isfinite(c)
        r, c = r[good], c[good]
        d = c - r
        usable = (r != 0) | (c == 0)
        relative = np.abs(d)[usable] / np.where(r == 0, 1, np.abs(r))[usable]

        def rms(x: Any) -> float:
            return float(np.sqrt(np.mean(x * x)))

        scale = max(np.linalg.norm(r) * np.linalg.norm(c), 1e-300)
        return {
            "max_abs": np.abs(d).max(), "mean_abs": np.abs(d).mean(), "rmse": rms(d), "rms_reference": rms(r),
            "rms_candidate": rms(c), "mean_reference": r.mean(), "mean_candidate": c.mean(), "mean_diff": d.mean(),
            "max_rel": relative.max() if relative.size else math.inf,
            "mean_rel": relative.mean() if relative.size else math.inf,
            "cosine": r @ c / scale,
        }  # fmt: skip


def check(reference: Any, candidate: Any, rtol: float = 3e-7, **options: Any) -> metrics.Metrics:
    got = compare_arrays(reference, candidate, **options)
    scale_r, scale_c = got.rms_reference, got.rms_candidate
    for name, value in naive(reference, candidate).items():
        # A mean of signed values is as good as the sum of magnitudes allows.
        slack = {"mean_reference": scale_r, "mean_candidate": scale_c + scale_r, "mean_diff": got.rmse, "cosine": 1}
        if name == "cosine" and not (scale_r and scale_c):
            continue
        assert getattr(got, name) == pytest.approx(value, rel=rtol, abs=rtol * slack.get(name, 0) + 1e-300), name
    return got


# ----------------------------------------------------------------------------------------------------------- one array


def check_stats(array: Any, rtol: float = 3e-6) -> None:
    stats = array_stats(array)
    with np.errstate(all="ignore"):
        wide = np.abs(array).astype(np.float64) if array.dtype.kind == "c" else array.astype(np.float64)
        bad_nan = np.isnan(array) if array.dtype.kind == "c" else np.isnan(wide)
        good = wide[np.isfinite(wide) & ~bad_nan]
        assert stats.nan == np.count_nonzero(bad_nan)
        assert stats.inf == wide.size - stats.nan - good.size
        if good.size:
            assert (stats.min, stats.max) == (good.min(), good.max())
            scale = np.abs(good).max()
            unit = good / scale if scale else good
            assert stats.mean == pytest.approx(good.mean(), rel=rtol, abs=rtol * float(np.abs(good).mean()))
            assert stats.std == pytest.approx(float(unit.std()) * scale, rel=rtol, abs=1e-14 * scale)
            assert stats.l2 == pytest.approx(float(np.linalg.norm(unit)) * scale, rel=rtol)
        else:
            assert math.isnan(stats.min) and math.isnan(stats.std) and stats.l2 == 0
    width = array.dtype.itemsize
    if width <= 8:
        bits = np.ascontiguousarray(array).view({1: "u1", 2: "u2", 4: "u4", 8: "u8"}[width])
        assert stats.fingerprint == sum(int(b) for b in bits.ravel()) % (1 << 8 * width)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, np.complex64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7), (3000,)], ids=str)
def test_stats_of_every_dtype(dtype: Any, shape: Any) -> None:
    values = np.asarray(noise(shape, np.float64))
    check_stats((np.abs(values) if np.dtype(dtype).kind == "u" else values).astype(dtype))


@given(
    st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=1, max_size=40),
    st.sampled_from(FLOATS),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_stats_of_special_values_in_any_order(values: list[float], dtype: Any, random: Any) -> None:
    with np.errstate(all="ignore"):
        array = np.array(values).astype(dtype)
    check_stats(array)
    shuffled = array.copy()
    order = list(range(array.size))
    random.shuffle(order)
    shuffled = array[order]
    first, second = array_stats(array), array_stats(shuffled)
    assert (first.fingerprint, first.nan, first.inf) == (second.fingerprint, second.nan, second.inf)
    assert first.l2 == pytest.approx(second.l2, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex128, np.int16], ids=lambda d: np.dtype(d).name)
def test_stats_do_not_depend_on_layout(dtype: Any) -> None:
    array = noise((6, 70, 50), dtype)
    expected = array_stats(array)
    wide = np.zeros((6, 140, 50), dtype)
    wide[:, ::2] = array
    for other in (array.T.copy().T, array.transpose(1, 0, 2), array[::-1, :, ::-1], wide[:, ::2],
                  array.astype(np.dtype(dtype).newbyteorder(">"))):  # fmt: skip
        stats = array_stats(other)
        assert stats.fingerprint == expected.fingerprint
        assert stats.l2 == pytest.approx(expected.l2, rel=1e-6)
        assert (stats.min, stats.max) == (expected.min, expected.max)
    changed = array.copy()
    changed[2, 3, 4] += 1
    assert array_stats(changed).fingerprint != expected.fingerprint


def test_a_dense_transpose_is_read_without_a_copy() -> None:
    array = noise((1000, 2000))
    tracemalloc.start()
    array_stats(array.T)
    array_stats(array[::-1].T)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize("size", [metrics.STATS_CHUNK + d for d in (-1, 0, 1)] + [200_001])
@pytest.mark.parametrize(
    "mean, std", [(0, 1), (1000, 1e-2), (3, 1), (1e-9, 1e-13), (2e-15, 2.5e-22), (1e20, 1e18), (1e-22, 1e-22)]
)
def test_std_survives_cancellation_and_squares_survive_the_range(size: int, mean: float, std: float) -> None:
    values = mean + std * np.random.default_rng(0).standard_normal(size)
    array = values.astype(np.float32)
    wide = array.astype(np.float64)
    stats = array_stats(array)
    assert stats.std == pytest.approx(wide.std(), rel=3e-6)
    assert stats.l2 == pytest.approx(np.linalg.norm(wide), rel=3e-6)
    assert stats.mean == pytest.approx(wide.mean(), abs=1e-6 * float(np.abs(wide).mean()))


def test_stats_of_a_constant_and_of_float64s_ends() -> None:
    stats = array_stats(np.full(100_000, 0.1, np.float32))
    assert (stats.mean, stats.std) == (float(np.float32(0.1)), 0.0)
    huge = array_stats(np.array([1e300, -1e300, 1e300]))
    assert huge.l2 == pytest.approx(math.sqrt(3) * 1e300) and huge.std == pytest.approx(math.sqrt(8 / 9) * 1e300)
    small = array_stats(np.array([1e-310, 3e-310]))
    assert small.std == pytest.approx(1e-310) and small.mean == pytest.approx(2e-310)


def test_stats_documents_signed_zero_and_nan_payload() -> None:
    assert array_stats(f32([0.0])).fingerprint != array_stats(f32([-0.0])).fingerprint
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert array_stats(payload).fingerprint != array_stats(f32([np.nan])).fingerprint


def test_what_is_no_number_is_refused() -> None:
    for array in (np.array(["a"]), np.zeros(3, "V2"), np.zeros(2, [("a", "f4")]), np.array([object()])):
        with pytest.raises(TwinscopeError, match=r"is not a number\nHint: "):
            array_stats(array)
        with pytest.raises(TwinscopeError, match="is not a number"):
            compare_arrays(array, array)


# ---------------------------------------------------------------------------------------------------------- two arrays


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2047,), (2049,), (33, 5, 40)], ids=str)
def test_metrics_of_every_float(dtype: Any, shape: Any) -> None:
    reference, candidate = noise(shape, dtype), np.asarray(noise(shape, dtype, 1)).astype(dtype)
    metrics_ = check(reference, candidate)
    assert metrics_.count == metrics_.finite == np.asarray(reference).size
    assert not metrics_.identical or np.array_equal(reference, candidate)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2048, 3 * CHUNK + 17])
def test_chunk_borders(size: int) -> None:
    reference = noise(size)
    candidate = reference + noise(size, seed=1) * np.float32(1e-5)
    check(reference, candidate)
    for position in (0, size // 2, size - 1, min(CHUNK, size - 1)):
        candidate = reference.copy()
        candidate[position] += 10
        got = check(reference, candidate)
        assert got.worst == (position,) and got.worst_candidate == float(candidate[position])
        assert got.within == (size - 1) / size and not got.identical
        candidate[position] = np.nan
        got = compare_arrays(reference, candidate)
        assert (got.first_nonfinite_mismatch, got.nonfinite_mismatch) == ((position,), 1)
        assert (got.nan_reference, got.nan_candidate, got.rmse) == (0, 1, 0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-7])
def test_sums_do_not_drift_on_constants(value: float) -> None:
    """Equal terms round the same way each time, the worst case for sums of float32."""
    reference = np.ones(500_000, np.float32)
    check(reference, reference + np.float32(value), rtol=1e-6)


@given(
    st.lists(st.tuples(*[st.sampled_from(SPECIAL) | st.floats(-1e6, 1e6, width=32)] * 2), min_size=1, max_size=30),
    st.sampled_from(FLOATS),
    st.booleans(),
)
@settings(max_examples=250, deadline=None)
def test_special_values(pairs: list[tuple[float, float]], dtype: Any, equal_nan: bool) -> None:
    with np.errstate(all="ignore"):
        r, c = (np.array(x).astype(dtype) for x in zip(*pairs, strict=True))
        wide_r, wide_c = r.astype(np.float64), c.astype(np.float64)
        good = np.isfinite(wide_r) & np.isfinite(wide_c)
        got = compare_arrays(r, c, atol=0.25, equal_nan=equal_nan)
        # In float64 where float32's range is left, so limits are compared loosely there.
        expected = np.isclose(wide_c, wide_r, rtol=0, atol=0.25, equal_nan=equal_nan)
    assert got.nan_reference == np.isnan(wide_r).sum() and got.nan_candidate == np.isnan(wide_c).sum()
    assert got.inf_reference == np.isinf(wide_r).sum() and got.inf_candidate == np.isinf(wide_c).sum()
    wrong = ~good & ~((wide_r == wide_c) | (np.isnan(wide_r) & np.isnan(wide_c)))
    assert got.nonfinite_mismatch == wrong.sum()
    assert got.first_nonfinite_mismatch == ((int(wrong.argmax()),) if wrong.any() else None)
    assert got.within == pytest.approx(expected.mean())
    bits = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}[r.dtype.itemsize]
    both_nan = np.isnan(wide_r) & np.isnan(wide_c)
    assert got.identical == bool(((r.view(bits) == c.view(bits)) | both_nan).all())
    if good.any():
        check(r, c)
        if got.max_abs:
            (at,) = got.worst or (-1,)
            assert abs(wide_c[at] - wide_r[at]) == pytest.approx(np.abs(wide_c[good] - wide_r[good]).max(), rel=1e-6)
            assert (got.worst_reference, got.worst_candidate) == (wide_r[at], wide_c[at])
        else:
            assert got.worst is None
    else:
        assert math.isnan(got.rmse) and math.isnan(got.max_abs) and got.worst is None


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-19, 1e18, 1e30])
def test_squares_outside_of_float32(scale: float) -> None:
    reference = (noise(5000, np.float64) * scale).astype(np.float32)
    candidate = (noise(5000, np.float64, 1) * scale).astype(np.float32)
    check(reference, candidate)
    check(reference, (reference * np.float32(1.0001)))
    check(reference, reference[::-1])


def test_tiny_errors_beside_large_values() -> None:
    reference = noise(5000) * np.float32(1e-22)
    reference[::100] = 1
    candidate = reference * np.float32(1.5)
    candidate[::100] = 1
    assert check(reference, candidate).rmse > 1e-23


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e150, 1e300])
def test_squares_outside_of_float64(scale: float) -> None:
    r, c = noise(3000, np.float64), noise(3000, np.float64, 1)
    expected = compare_arrays(r, c)
    got = compare_arrays(r * scale, c * scale)
    rtol = 1e-2 if scale < 1e-300 else 1e-12
    for name in ("rmse", "rms_reference", "rms_candidate", "mean_abs", "max_abs"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name) * scale, rel=rtol, abs=1e-323), name
    assert got.cosine == pytest.approx(expected.cosine, abs=1e-3 if scale < 1e-300 else 1e-12)
    assert got.effective_bits == pytest.approx(expected.effective_bits, abs=1e-2)


def test_a_candidate_far_smaller_than_its_reference() -> None:
    reference = noise(10_000)
    check(reference, reference * np.float32(1e-4) + noise(10_000, seed=2) * np.float32(1e-6))
    check(reference, noise(10_000, seed=2) * np.float32(1e-25))
    check(noise(10_000) * np.float32(1e-25), reference)
    opposite = check(reference, -reference)
    assert opposite.cosine == pytest.approx(-1)


def test_zeros_in_the_reference() -> None:
    reference = np.maximum(noise(50_000), 0)
    same_zeros = check(reference, reference * np.float32(1.001))
    assert same_zeros.max_rel == pytest.approx(1e-3, rel=1e-3)
    moved = reference.copy()
    moved[reference == 0] += 1e-9
    assert check(reference, moved).max_rel == 0
    nothing = compare_arrays(np.zeros(5, np.float32), np.ones(5, np.float32))
    assert (nothing.max_rel, nothing.mean_rel, nothing.cosine) == (math.inf, math.inf, 0)
    assert nothing.effective_bits == -math.inf
    both = compare_arrays(np.zeros(5, np.float32), np.zeros(5, np.float32))
    assert (both.cosine, both.effective_bits, both.identical, both.within) == (1, math.inf, True, 1)


def test_negative_zero_is_no_error_but_not_identical() -> None:
    got = compare_arrays(f32([0.0, 1.0]), f32([-0.0, 1.0]))
    assert (got.max_abs, got.worst, got.within, got.identical) == (0, None, 1, False)
    many = np.zeros(50, np.float32)
    signed = many.copy()
    signed[40] = -0.0
    assert not compare_arrays(many, signed).identical and compare_arrays(signed, signed.copy()).identical


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
def test_integers(dtype: Any) -> None:
    high = 2 if dtype is np.bool_ else 100
    rng = np.random.default_rng(0)
    r, c = (rng.integers(0, high, (40, 30)).astype(dtype) for _ in range(2))
    got = check(r, c, rtol=1e-12)
    assert got.worst is not None and type(got.worst_reference) is int
    assert compare_arrays(r, r.copy()).identical


def test_64_bit_integers_are_exact() -> None:
    base = np.full(10, 2**60, np.int64)
    other = base.copy()
    assert compare_arrays(base, other).identical
    other[7] += 1
    got = compare_arrays(base, other)
    assert (got.max_abs, got.worst, got.worst_candidate, got.identical) == (1.0, (7,), 2**60 + 1, False)
    ends = compare_arrays(np.array([-(2**63), 5], np.int64), np.array([2**64 - 1, 5], np.uint64))
    assert ends.max_abs == pytest.approx(2.0**64 + 2.0**63) and ends.worst == (0,)
    assert compare_arrays(np.array([True, False]), np.array([1, 0], np.int64)).max_abs == 0


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex(dtype: Any) -> None:
    r = (noise(500, np.float64) + 1j * noise(500, np.float64, 1)).astype(dtype)
    c = (r + (noise(500, np.float64, 2) + 1j) * 1e-2).astype(dtype)
    got = compare_arrays(r, c)
    wide_r, wide_c = r.astype(np.complex128), c.astype(np.complex128)
    error = np.abs(wide_c - wide_r)
    assert got.max_abs == pytest.approx(error.max()) and got.worst == (int(error.argmax()),)
    assert got.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert got.cosine == pytest.approx(
        np.vdot(wide_r, wide_c).real / np.linalg.norm(wide_r) / np.linalg.norm(wide_c), abs=1e-12
    )
    assert got.mean_diff == pytest.approx(float(np.mean(np.abs(wide_c) - np.abs(wide_r))))
    assert compare_arrays(r, r.copy()).identical
    c[3] = complex(math.nan, 1)
    c[4] = complex(1, math.inf)
    assert compare_arrays(r, c).nonfinite_mismatch == 2


def test_mixed_dtypes() -> None:
    reference = noise((30, 40))
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float64, ml_dtypes.float8_e4m3fn):
        check(reference, reference.astype(dtype))
    half = reference.astype(ml_dtypes.bfloat16)
    got = compare_arrays(half, half.astype(np.float32))
    assert got.identical and got.dtypes == ("bfloat16", "float32")
    assert 7 < compare_arrays(reference, half).effective_bits < 11


def test_layouts_of_the_inputs_do_not_matter() -> None:
    reference, candidate = noise((20, 30, 17)), noise((20, 30, 17), seed=1)
    expected = check(reference, candidate)
    wide = np.zeros((40, 30, 17), np.float32)
    wide[::2] = candidate
    for r, c in (
        (np.asfortranarray(reference), candidate), (reference, np.asfortranarray(candidate)),
        (np.asfortranarray(reference), np.asfortranarray(candidate)), (reference, wide[::2]),
        (reference[::-1][::-1], candidate.astype(">f4")),
        (reference.transpose(1, 0, 2).copy().transpose(1, 0, 2), candidate),
    ):  # fmt: skip
        got = check(r, c)
        assert (got.max_abs, got.worst, got.within) == (expected.max_abs, expected.worst, expected.within)
        assert got.worst_reference == reference[got.worst] and got.worst_candidate == candidate[got.worst]
    bad = np.asfortranarray(candidate)
    bad[3, 4, 5] = bad[0, 29, 16] = bad[19, 0, 0] = np.inf
    assert compare_arrays(np.asfortranarray(reference), bad).first_nonfinite_mismatch == (0, 29, 16)
    spread = np.broadcast_to(f32([1, 2, 3]), (1000, 3))
    assert compare_arrays(spread, spread.copy()).identical


@pytest.mark.parametrize("shape", [(3, 70_000, 5), (300_000, 3), (2, 2, 150_001), (5, 1, 7, 20_000)], ids=str)
def test_blocks_of_strided_arrays(shape: Any) -> None:
    reference = noise((*shape[:-1], shape[-1] * 2))[..., ::2]
    candidate = reference.copy()
    where = tuple(extent - 1 for extent in shape)
    candidate[where] += 5
    candidate[0, 0] -= 1
    got = check(reference, candidate)
    assert got.worst == where and got.finite == reference.size
    assert np.isclose(array_stats(reference).l2, np.linalg.norm(reference.astype(np.float64)))


def test_within_is_numpys_isclose() -> None:
    reference = noise(100_000)
    candidate = reference + noise(100_000, seed=1) * np.float32(1e-5)
    for atol, rtol in ((0, 0), (1e-5, 0), (0, 1e-5), (1e-6, 1e-6), (1, 0), (0, 100), (1e300, 1e300)):
        with np.errstate(all="ignore"):
            expected = np.isclose(candidate, reference, atol=atol, rtol=rtol).mean()
        got = compare_arrays(reference, candidate, atol=atol, rtol=rtol).within
        assert got == pytest.approx(expected, abs=2e-5), (atol, rtol)
    bounded = np.abs(reference) + 1  # no relative error is far above the others
    for rtol in (1e-6, 1e-5, 1e-4):
        expected = np.isclose(candidate - reference + bounded, bounded, atol=0, rtol=rtol).mean()
        got = compare_arrays(bounded, candidate - reference + bounded, rtol=rtol).within
        assert got == pytest.approx(expected, abs=2e-5), rtol
    exact = compare_arrays(np.array([0, 0, 0], np.int32), np.array([1, 2, 3], np.int32), atol=2)
    assert exact.within == 2 / 3


def test_no_result_depends_on_threads() -> None:
    reference = noise((4, 150_000))
    candidate = reference + noise((4, 150_000), seed=1) * np.float32(1e-5)
    candidate[2, 7] = np.nan
    one = compare_arrays(reference, candidate, threads=1, rtol=1e-5)
    for threads in (2, 3, 7):
        assert compare_arrays(reference, candidate, threads=threads, rtol=1e-5) == one
    candidate[3, 9] += 1
    assert compare_arrays(reference, candidate, threads=2, rtol=1e-5) != one


def test_memory_does_not_grow() -> None:
    reference = noise((4096, 4096))
    candidate = reference + np.float32(1e-3)
    for r, c in ((reference, candidate), (reference.T, candidate.T), (reference, candidate.T)):
        tracemalloc.start()
        compare_arrays(r, c, rtol=1e-3, threads=2)
        array_stats(r)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


def test_empty_arrays_are_no_agreement() -> None:
    got = compare_arrays(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert got.count == 0 and got.identical and math.isnan(got.within) and math.isnan(got.max_abs)
    hollow = np.zeros((3, 0, 2), np.int8)
    assert compare_arrays(hollow, hollow[::-1]).count == 0
    assert array_stats(hollow).fingerprint == 0 and math.isnan(array_stats(hollow.transpose(2, 0, 1)).mean)


def test_wrong_arguments() -> None:
    a = np.zeros(3, np.float32)
    with pytest.raises(TwinscopeError, match=r"shape \(3,\), the candidate \(1, 3\)\nHint: "):
        compare_arrays(a, a[None])
    with pytest.raises(OptionError, match="atol=-1"):
        compare_arrays(a, a, atol=-1)
    with pytest.raises(OptionError, match="rtol=nan"):
        compare_arrays(a, a, rtol=math.nan)
    with pytest.raises(OptionError, match="threads=0"):
        compare_arrays(a, a, threads=0)


def test_user_error_state_is_kept_and_does_not_matter() -> None:
    r, c = f32([0, 3e38, np.nan, 1e-40]), f32([1, -3e38, 1, np.inf])
    with np.errstate(all="raise"):
        compare_arrays(r, c)
        compare_arrays(r[:1], c[:1])
        assert np.geterr()["over"] == "raise"


def test_effective_bits() -> None:
    reference = noise(20_000)
    assert compare_arrays(reference, reference.copy()).effective_bits == math.inf
    assert 8 < compare_arrays(reference, reference.astype(ml_dtypes.bfloat16)).effective_bits < 10
    assert compare_arrays(reference, reference * np.float32(1.0009765625)).effective_bits == pytest.approx(10, abs=1e-3)


# ------------------------------------------------------------------------------------------------------ another layout


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.int64, np.complex64, np.int8])
def test_a_permutation_of_axes_is_named(dtype: Any) -> None:
    array = noise((6, 6, 6), np.float64).astype(dtype)
    assert compare_arrays(array, array.transpose(2, 1, 0)).same_other_layout == "transpose(2, 1, 0)"
    got = compare_arrays(array, array.transpose(1, 2, 0)).same_other_layout
    assert got == "transpose(2, 0, 1)"
    assert np.array_equal(array.transpose(1, 2, 0).transpose(2, 0, 1), array)
    shuffled = array.reshape(-1)[np.random.default_rng(0).permutation(array.size)].reshape(array.shape)
    assert compare_arrays(array, shuffled).same_other_layout == "other order"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.int64])
def test_a_near_permutation_is_not(dtype: Any) -> None:
    array = np.arange(100).reshape(10, 10).astype(dtype)
    near = array.T.copy()
    near[3, 4] += 1
    near[7, 5] -= 1  # the sums agree
    assert compare_arrays(array, near).same_other_layout is None
    assert same_other_layout(array, near) is None
    assert compare_arrays(array, array.T.copy()).same_other_layout == "transpose(1, 0)"


def test_a_permutation_is_named_across_dtypes() -> None:
    for first, second in (
        (ml_dtypes.float8_e5m2, np.float16), (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16), (np.int64, np.uint64),
        (np.int32, np.float32), (np.float32, np.complex64),
    ):  # fmt: skip
        array = np.arange(1, 13).reshape(3, 4).astype(first)[:, :3]
        assert compare_arrays(array, array.T.astype(second)).same_other_layout == "transpose(1, 0)"
        assert compare_arrays(array, (array.astype(np.float64).T + 1).astype(second)).same_other_layout is None


def test_noise_is_no_other_layout_and_neither_is_the_same() -> None:
    array = noise((50, 50))
    assert compare_arrays(array, array + np.float32(1e-6)).same_other_layout is None
    assert compare_arrays(array, array.copy()).same_other_layout is None
    assert same_other_layout(array, array.copy()) is None
    assert same_other_layout(array, array[:40]) is None


def test_layouts_of_different_shapes() -> None:
    array = noise((4, 6, 5))
    assert same_other_layout(array, array.reshape(24, 5)) == "reshape"
    assert same_other_layout(array, array.reshape(-1, order="F")) == "column-major reshape"
    assert same_other_layout(array, array.transpose(2, 0, 1)) == "transpose(1, 2, 0)"
    assert same_other_layout(array, -array.reshape(24, 5)) is None


def test_a_permutation_with_nan_and_zeros_is_found() -> None:
    array = np.maximum(noise((30, 30)), 0)
    array[3, 4] = np.nan
    array[5, 6] = -np.inf
    assert compare_arrays(array, array.T).same_other_layout == "transpose(1, 0)"
    other = array.T.copy()
    other.view(np.uint32)[4, 3] += 1  # another payload
    assert np.isnan(other[4, 3])
    other[other == 0] = -0.0
    assert compare_arrays(array, other).same_other_layout == "transpose(1, 0)"
    other[0, 0] = np.nan
    assert compare_arrays(array, other).same_other_layout is None


def test_noise_costs_no_search_for_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(metrics, "_multiset", lambda *_: called.append(1))
    array = noise((100, 100))
    compare_arrays(array, array + noise((100, 100), seed=1) * np.float32(1e-6))
    assert not called
    compare_arrays(array, array.T)
    assert called


def test_twins_swapped_in_a_large_array() -> None:
    array = noise(300_000)
    swapped = array.copy()
    swapped[[5, 200_000]] = swapped[[200_000, 5]]
    assert compare_arrays(array, swapped).same_other_layout == "other order"
    swapped[7] = np.nextafter(swapped[7], np.float32(9))
    assert compare_arrays(array, swapped).same_other_layout is None


def test_byte_order_does_not_matter() -> None:
    array = noise(100)
    swapped = array.astype(array.dtype.newbyteorder())
    assert array_stats(swapped) == array_stats(array)
    assert compare_arrays(array, swapped).identical
