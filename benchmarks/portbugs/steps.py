"""PortBugs of the training step: kinds 7, 8, 23, 24 and 40, each with its clean twin, on the benchmark's own networks.

    python benchmarks/portbugs/steps.py [--pair PAIR] [--only PATTERN]

A case is found when the result is DIFFERENT with findings of the update and of nothing else, and named when the cause
says what was planted. A clean twin must be SAME. Exit status 1 where a clean twin is not.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

from cases import PAIRS, Case, Expected  # noqa: E402

Make = Callable[[str, Any], Any]
STEPS = 3
#: After how many steps gradients are this small: many late in training.
SMALL = 1e-5


@dataclass(frozen=True, slots=True)
class StepCase:
    """Two ways of making optimizers, and what is true of them."""

    name: str
    number: int  # in PORT_BUGS.md
    network: str
    make: tuple[Make, Make]
    cause: str = ""  # what a named cause says; "" of a clean twin
    scale: float = 1.0  # of the loss


def _cases(pair: str) -> list[StepCase]:
    from zoo.optimizers import optimizer, set_rate, settings, update, without_decay_on_biases

    def plain(kind: str, lr: float = 0.01, **neutral: Any) -> Make:
        return lambda framework, model: optimizer(framework, kind, model, lr=lr, **settings(framework, kind, **neutral))

    def clipped(kind: str, norm: float) -> Make:
        return lambda framework, model: update(framework, optimizer(framework, kind, model), norm)

    def spared(framework: str, model: Any) -> Any:
        return without_decay_on_biases(framework, model, 0.01, 0.1)

    def scheduled(shift: int) -> Make:
        def make(framework: str, model: Any) -> Any:
            made, count = optimizer(framework, "adam", model), [shift]

            def step(*gradients: Any) -> None:
                set_rate(framework, made, 0.01 * 0.5 ** max(count[0], 0))
                count[0] += 1
                made(*gradients) if framework == "mindspore" else made.step()

            return (lambda gradients: step(gradients)) if framework == "mindspore" else (lambda: step())

        return make

    found = []
    for network in ("block", "vision", "preact"):
        for kind in ("sgd", "momentum", "adam", "adamw"):
            found.append(StepCase(f"clean {kind}, {network}", 0, network, (plain(kind), plain(kind))))
        decayed = plain("adamw", weight_decay=0.1)
        l2 = plain("plain adam", weight_decay=0.1)
        found += [
            StepCase(f"decay on biases, {network}", 40, network, (spared, decayed), "weight decay 0 / 0.1"),
            StepCase(f"clean spared biases, {network}", 0, network, (spared, spared)),
            StepCase(f"l2 for decoupled, {network}", 40, network, (decayed, l2), "decoupled / l2"),
            StepCase(f"clipping missing, {network}", 40, network, (clipped("sgd", 1e-3), plain("sgd")), "clipped"),
            StepCase(f"clean clipping, {network}", 0, network, (clipped("sgd", 1e-3), clipped("sgd", 1e-3))),
            StepCase(f"schedule late, {network}", 40, network, (scheduled(0), scheduled(-1)), "one step behind"),
            StepCase(f"clean schedule, {network}", 0, network, (scheduled(0), scheduled(0))),
            StepCase(f"rmsprop, {network}", 7, network, (plain("rmsprop"), plain("rmsprop")), "epsilon", SMALL),
            StepCase(f"adagrad, {network}", 8, network, (plain("adagrad"), plain("adagrad")), "epsilon|initial", SMALL),
        ]
        if pair == "torch-paddle":
            both = (plain("adadelta"), plain("adadelta"))
            found.append(StepCase(f"adadelta, {network}", 8, network, both, "rho"))
        if pair == "torch-mindspore":
            found += [
                StepCase(
                    f"adam epsilon, {network}",
                    23,
                    network,
                    (plain("adam"), plain("plain adam")),
                    "epsilon is added after",
                    SMALL,
                ),
                StepCase(
                    f"adam weight decay, {network}",
                    24,
                    network,
                    (plain("adamw"), plain("adam weight decay", eps=1e-8, weight_decay=0.01)),
                    "bias correction True / False",
                ),
            ]
    return found


def opinion(case: StepCase, pair: str) -> tuple[bool, bool, str]:
    """(whether it is called different in the update alone, whether the cause is named, what was said)."""
    import planting

    import twinscope

    twins = planting.prepare(Case(f"clean, {case.network}", pair, case.network, Expected.CLEAN))
    made = tuple(
        make(framework, model)
        for make, framework, model in zip(case.make, twins.frameworks, (twins.reference, twins.candidate), strict=True)
    )
    result = twinscope.align(
        twins.reference,
        twins.candidate,
        twins.inputs,
        mapping=twins.carried,
        loss=lambda output: (output * output).mean() * case.scale,
        optimizer=made,
        steps=STEPS,
    )
    bugs = [f for f in result.findings if f.verdict is twinscope.Verdict.BUG]
    right = bool(bugs) and {f.phase for f in bugs} == {twinscope.Phase.STEP}
    causes = "; ".join(dict.fromkeys(str(f.cause or f.message) for f in bugs))
    named = right and any(word in causes for word in case.cause.split("|"))
    return right, named, f"{result.verdict}: {causes or '; '.join(result.notes[:1])}"


def main() -> int:
    """Every pair in a process of its own; a line a case, and how many were found."""
    parser = argparse.ArgumentParser(description="mistakes of porting the training step")
    parser.add_argument("--pair", choices=PAIRS)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    options = parser.parse_args()
    if options.pair is None:
        words = [sys.executable, __file__, "--only", options.only]
        return max(subprocess.run([*words, "--pair", pair], check=False).returncode for pair in PAIRS)
    warnings.filterwarnings("ignore")
    for framework in options.pair.split("-"):
        importlib.import_module(framework)
    planted = found = named = clean = quiet = 0
    for case in _cases(options.pair):
        if not fnmatch.fnmatchcase(case.name, f"*{options.only}*"):
            continue
        right, cause, said = opinion(case, options.pair)
        if case.cause:
            planted, found, named = planted + 1, found + right, named + cause
            mark = "named" if cause else "found" if right else "MISSED"
        else:
            clean, quiet = clean + 1, quiet + said.startswith("SAME")
            mark = "quiet" if said.startswith("SAME") else "FALSE ALARM"
        print(f"{mark:12}{case.name:34}{said[:140]}", flush=True)
    print(f"{options.pair}: {found} of {planted} found, {named} named; {quiet} of {clean} clean twins are the same")
    return int(quiet < clean)


if __name__ == "__main__":
    raise SystemExit(main())
