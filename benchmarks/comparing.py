"""How long a comparison takes as traces grow, matching and reports included: it should be about linear.

    python benchmarks/comparing.py

The traces are those of benchmarks/matching.py, compared by their statistics.
"""

from __future__ import annotations

import time

from matching import transformer

from twinscope import Trace, compare


def main() -> None:
    print(f"{'records':>9} {'seconds':>9} {'us/record':>10} {'to the row before':>18}")
    before = None
    for layers in (25, 245, 2460):  # about 40 records a layer
        traces = []
        for candidate in (False, True):
            fake, _ = transformer(layers, candidate, bugged=False, flat=False)
            traces.append(Trace(fake.manifest, tuple(fake.records)))
        began = time.perf_counter()
        result = compare(*traces)
        str(result)
        seconds = time.perf_counter() - began
        assert result.pairs, "nothing was compared"
        growth = "" if before is None else f"{seconds / before[0]:.1f} x for {len(traces[0]) / before[1]:.1f} x records"
        print(f"{len(traces[0]):9} {seconds:9.2f} {seconds / len(traces[0]) * 1e6:10.1f} {growth:>18}")
        before = (seconds, len(traces[0]))


if __name__ == "__main__":
    main()
