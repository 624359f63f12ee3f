"""How much faster `compare_arrays` is than numpy's one-liners, one after the other, and what memory both take.

    python benchmarks/metrics.py [--large] [--threads N]

Two baselines. `listed` is what people write: largest and mean absolute error, largest relative error, rmse, cosine,
isclose share, NaN counts, place of the largest error. `equal work` adds the one-liners for what compare_arrays also
reports (mean relative error, means, root mean squares, Inf counts, places where NaN or Inf differ, identical). The
baselines work in the arrays' own precision, bfloat16 after a cast to float32. Times are the best of several
interleaved runs; memory is tracemalloc's peak beyond the inputs.

What the one-liners cost depends on the heap as well: in a new process glibc hands the temporaries of several MB back to
the system and faults their pages in again each time. Once larger blocks have been freed it keeps them, so both states
are measured.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from twinscope.metrics import array_stats, compare_arrays

ATOL, RTOL = 1e-8, 1e-5
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def listed(r: Any, c: Any) -> tuple[Any, ...]:
    return (
        np.abs(c - r).max(),
        np.abs(c - r).mean(),
        (np.abs(c - r) / np.abs(r)).max(),
        np.linalg.norm(c - r) / np.sqrt(r.size),
        np.dot(r, c) / (np.linalg.norm(r) * np.linalg.norm(c)),
        np.isclose(c, r, rtol=RTOL, atol=ATOL).mean(),
        np.isnan(r).sum(),
        np.isnan(c).sum(),
        np.unravel_index(np.argmax(np.abs(c - r)), r.shape),
    )


def equal_work(r: Any, c: Any) -> tuple[Any, ...]:
    return (
        *listed(r, c),
        (np.abs(c - r) / np.abs(r)).mean(),
        r.mean(),
        c.mean(),
        (c - r).mean(),
        np.linalg.norm(r) / np.sqrt(r.size),
        np.linalg.norm(c) / np.sqrt(c.size),
        np.isinf(r).sum(),
        np.isinf(c).sum(),
        ((np.isnan(r) != np.isnan(c)) | (np.isinf(r) != np.isinf(c))).sum(),
        np.array_equal(r, c, equal_nan=True),
    )


def best(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Interleaved, so that a busy spell of the machine does not hit one of them alone."""
    times = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def peak(call: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def line(rng: np.random.Generator, dtype: np.dtype[Any], size: int, options: argparse.Namespace) -> str:
    r = rng.standard_normal(size, dtype=np.float32)
    c = (r + np.float32(1e-6 if dtype == FLOAT32 else 1e-2) * r[::-1]).astype(dtype)
    r = r.astype(dtype)
    twin = r.copy()

    def baseline(lines: Callable[[Any, Any], object]) -> object:
        return lines(r, c) if dtype == FLOAT32 else lines(r.astype(np.float32), c.astype(np.float32))

    def ours() -> object:
        return compare_arrays(r, c, rtol=RTOL, atol=ATOL, threads=options.threads)

    calls: dict[str, Callable[[], object]] = {
        "ours": ours,
        "same": lambda: compare_arrays(r, twin, threads=options.threads),
        "listed": lambda: baseline(listed),
        "equal": lambda: baseline(equal_work),
    }
    with np.errstate(all="ignore"):
        times = best(calls, options.seconds)
        own, theirs = peak(calls["ours"]), peak(calls["listed"])
    ms = {name: seconds * 1e3 for name, seconds in times.items()}
    return (
        f"{dtype.name:9} {size:9} {ms['ours']:7.3f} ms {ms['listed']:7.2f} ms {ms['listed'] / ms['ours']:6.2f}"
        f" {ms['equal']:7.2f} ms {ms['equal'] / ms['ours']:6.2f} {ms['same']:7.3f} ms {own:6.1f} {theirs:10.1f}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="1e8 elements as well (3 GB)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=1.5, help="per line")
    options = parser.parse_args()
    say = sys.stdout.write
    say(f"{'dtype':9} {'size':>9} {'compare':>10} {'listed':>10} {'ratio':>6} {'equal work':>10} {'ratio':>6}")
    say(f" {'identical':>10} {'MiB':>6} {'MiB listed':>10}\n")
    rng = np.random.default_rng(0)
    say("heap as a new process has it\n")
    for dtype in (FLOAT32, BFLOAT16):
        for size in (10**4, 10**6):
            say(line(rng, dtype, size, options))
    np.ones(7 << 20, np.float32)  # freed at once: from now on glibc keeps blocks of up to this size
    say("heap that has held larger arrays before\n")
    for dtype in (FLOAT32, BFLOAT16):
        for size in (10**4, 10**6, 10**7, *([10**8] if options.large else [])):
            say(line(rng, dtype, size, options))
    for size in (10_000, 50_000, 200_000):
        array = rng.standard_normal(size, dtype=np.float32)
        taken = best({"stats": lambda array=array: array_stats(array)}, 0.3)["stats"]  # type: ignore[misc]
        say(f"array_stats, float32, {size}: {taken * 1e6:.1f} us\n")


if __name__ == "__main__":
    main()
