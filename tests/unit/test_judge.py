"""Verdicts from numbers, right at the borders."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from twinscope.errors import OptionError
from twinscope.judge import ROUNDOFF, Context, Mode, Numbers, RoundoffJudge, ToleranceJudge
from twinscope.records import Verdict

CONTEXT = Context(("float32", "float32"), "float32", 3, 0.0)
SAME = Numbers(True, 0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
U = ROUNDOFF["float32"]


def off(error: float, **more: float) -> Numbers:
    numbers = Numbers(False, 0, error, error, error, 0.0, 1.0, 1.0)
    return replace(numbers, **more)  # type: ignore[arg-type]


def test_roundoff_is_half_the_distance_from_one_to_the_next_number() -> None:
    np = pytest.importorskip("numpy")
    for name in ("float64", "float32", "float16"):
        assert ROUNDOFF[name] == np.finfo(name).eps / 2


def test_the_limit_grows_with_depth_and_precision() -> None:
    judge = RoundoffJudge()
    assert judge.limit(SAME, CONTEXT) == 16 * U * 4
    assert judge.limit(SAME, replace(CONTEXT, depth=0)) == 16 * U
    # half precisions accumulate in float32: fewer roundings, and they add up like a random walk
    assert judge.limit(SAME, replace(CONTEXT, dtypes=("float32", "bfloat16"))) == 4 * 2**-8 * 2
    assert judge.limit(SAME, replace(CONTEXT, working="float16")) == 4 * 2**-11 * 2
    assert judge.limit(SAME, replace(CONTEXT, dtypes=("float64", "float64"), working="")) == 16 * 2**-53 * 4


def test_what_was_given_well_must_come_out_well() -> None:
    judge = RoundoffJudge()
    deep = replace(CONTEXT, depth=500)
    assert judge.verdict(off(1e-5), deep) is Verdict.NOISE
    assert judge.verdict(off(1e-5), replace(deep, given=0.0)) is Verdict.BUG
    assert judge.verdict(off(1e-5), replace(deep, given=1e-6)) is Verdict.NOISE
    assert judge.limit(SAME, replace(CONTEXT, given=1.0)) == judge.limit(SAME, CONTEXT)  # never looser


def test_so_much_handed_on_that_nothing_can_be_told() -> None:
    judge = RoundoffJudge()
    assert judge.verdict(off(0.005), replace(CONTEXT, handed_on=0.2)) is Verdict.NOISE
    assert judge.verdict(off(0.1), replace(CONTEXT, handed_on=0.2)) is Verdict.UNDECIDED
    assert judge.verdict(off(0.3), replace(CONTEXT, handed_on=0.2)) is Verdict.BUG


def test_at_the_limit_and_above() -> None:
    judge = RoundoffJudge()
    limit = judge.limit(SAME, CONTEXT)
    assert judge.verdict(SAME, CONTEXT) is Verdict.EXACT
    assert judge.verdict(off(limit), CONTEXT) is Verdict.NOISE
    assert judge.verdict(off(limit * 1.001), CONTEXT) is Verdict.BUG
    assert judge.verdict(off(math.nan), CONTEXT) is Verdict.BUG
    assert judge.verdict(off(math.inf), CONTEXT) is Verdict.BUG


def test_a_single_element_may_be_further_off_but_not_any_far() -> None:
    judge = RoundoffJudge()
    limit = judge.limit(SAME, CONTEXT)
    assert judge.verdict(off(limit / 100, max_abs=64 * limit), CONTEXT) is Verdict.NOISE
    assert judge.verdict(off(limit / 100, max_abs=65 * limit), CONTEXT) is Verdict.BUG


def test_cancellation_has_a_scale_of_its_own() -> None:
    judge = RoundoffJudge()
    tiny = off(1e-7, rms_reference=1e-8)
    assert judge.verdict(tiny, CONTEXT) is Verdict.BUG
    assert judge.verdict(tiny, replace(CONTEXT, floor=1.0)) is Verdict.NOISE
    nothing = off(1e-7, rms_reference=0.0)
    assert judge.error(nothing, CONTEXT) == math.inf
    assert judge.verdict(nothing, CONTEXT) is Verdict.BUG
    assert judge.verdict(off(0.0, rms_reference=0.0), CONTEXT) is Verdict.NOISE  # 0.0 and -0.0


def test_nan_on_one_side_is_a_bug_whatever_else() -> None:
    for judge in (RoundoffJudge(), ToleranceJudge(math.inf, math.inf), ToleranceJudge(9, 9, Mode.MEAN)):
        assert judge.verdict(replace(SAME, nonfinite_mismatch=1), CONTEXT) is Verdict.BUG
        assert judge.verdict(SAME, CONTEXT) is Verdict.EXACT


def test_whole_numbers_are_equal_or_not() -> None:
    judge = RoundoffJudge()
    context = Context(("int64", "int64"), "", 3, 0.0)
    assert judge.verdict(SAME, context) is Verdict.EXACT
    assert judge.verdict(off(1e-12, within=0.999), context) is Verdict.BUG
    # made from noisy numbers, some may flip
    noisy = replace(context, working="float32")
    assert judge.verdict(off(1e-12, within=0.999), noisy) is Verdict.UNDECIDED
    assert judge.verdict(off(1e-12, within=0.9), noisy) is Verdict.BUG


def test_strict_is_every_element() -> None:
    judge = ToleranceJudge(1e-3)
    assert judge.verdict(off(1e-9, within=1.0), CONTEXT) is Verdict.NOISE
    assert judge.verdict(off(1e-9, within=0.999999), CONTEXT) is Verdict.BUG


def test_mean_is_the_mean_error_against_the_mean_magnitude() -> None:
    judge = ToleranceJudge(0.25, 0.5, Mode.MEAN)
    at = off(1.0, mean_abs=0.25 + 0.5 * 2.0, mean_abs_reference=2.0, max_abs=1e9)
    assert judge.verdict(at, CONTEXT) is Verdict.NOISE
    assert judge.verdict(replace(at, mean_abs=math.nextafter(1.25, 2)), CONTEXT) is Verdict.BUG


def test_error_and_limit_speak_of_one_scale() -> None:
    for mode in Mode:
        judge = ToleranceJudge(0.5, 0.25, mode)
        numbers = off(0.1, max_abs=3.0, mean_abs=3.0, rms_reference=4.0, mean_abs_reference=4.0)
        assert judge.error(numbers, CONTEXT) == 0.75
        assert judge.limit(numbers, CONTEXT) == 0.25 + 0.5 / 4
        zero = replace(numbers, rms_reference=0.0, mean_abs_reference=0.0)
        assert judge.error(zero, CONTEXT) == math.inf
        assert judge.limit(zero, CONTEXT) == math.inf


@pytest.mark.parametrize("value", [-1, math.nan, "1e-5", None, True])
def test_what_is_no_tolerance(value: object) -> None:
    with pytest.raises(OptionError, match=r"is not a tolerance\nHint: write "):
        ToleranceJudge(atol=value)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="rtol="):
        ToleranceJudge(rtol=value)  # type: ignore[arg-type]


def test_no_tolerance_at_all_is_exactness() -> None:
    judge = ToleranceJudge()
    assert judge.verdict(off(1e-30), CONTEXT) is Verdict.BUG
    assert judge.verdict(SAME, CONTEXT) is Verdict.EXACT
