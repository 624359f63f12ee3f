"""One call of `align` on model pairs that nobody here wrote: a table of what came of it.

    python benchmarks/public_pairs/run.py [--only PATTERN] [--family FAMILY] [--all] [--forward] [--timeout S]
                                          [--json FILE [--resume]] [--markdown FILE]

Each pair runs in a process of its own, at random initialisation with a fixed seed, in eval mode, without a hint; first
forward only, then with the backward pass. A pair that crashes or hangs costs its row and no other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# after the environment's own packages: these were installed without looking at what is there
sys.path.append(str(HERE / ".packages"))

from pairs import FAMILIES, ModelPair, select  # noqa: E402

COLUMNS = ("pair", "weights", "proof", "forward", "backward", "seconds", "cpu", "what differs")
WIDTHS = (58, 9, 9, 10, 10, 8, 6)


def main() -> int:
    options = _options().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.child:
        _child(options.child, Path(options.json), not options.forward)
        return 0
    if not (HERE / ".packages").is_dir():
        print("the packages are not installed: make public-pairs", file=sys.stderr)
        return 2
    families = (options.family,) if options.family else FAMILIES
    chosen = select(families=families, pattern=options.only, everything=options.all)
    if not chosen:
        print(f"no pair is called like {options.only!r}", file=sys.stderr)
        return 2
    print(_row(COLUMNS))
    found: list[dict[str, Any]] = []
    if options.resume and options.json and Path(options.json).exists():
        found = json.loads(Path(options.json).read_text())
    known = {report["pair"] for report in found}
    for pair in chosen:
        if pair.name in known:
            continue
        report = _apart(pair, options.timeout, not options.forward)
        found.append(report)
        print(_row(_cells(report)), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
        if options.markdown:
            Path(options.markdown).write_text(_markdown(found))
    print(_summary(found))
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="align() on public model pairs")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="a name on either side, * and ? allowed")
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--all", action="store_true", help="every pair in common, not only the small ones")
    parser.add_argument("--forward", action="store_true", help="without the backward pass")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="seconds that one pair may take")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--json", metavar="FILE", help="also write what was found here, with the messages in full")
    parser.add_argument("--resume", action="store_true", help="leave out the pairs that the file of --json has")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def _apart(pair: ModelPair, timeout: float, backward: bool) -> dict[str, Any]:
    """Try one pair in a process of its own. What it had found when it died is kept."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        words = [sys.executable, __file__, "--child", json.dumps(_as_dict(pair)), "--json", str(file)]
        words += [] if backward else ["--forward"]
        start = time.perf_counter()
        # a session of its own, so that what the frameworks start can be ended with it
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=folder
        )
        died = ""
        try:
            _, errors = process.communicate(timeout=timeout)
            if process.returncode:
                last = (errors.strip().splitlines() or [""])[-1]
                died = f"the process ended with {process.returncode}: {last}"
        except subprocess.TimeoutExpired:
            died = f"not done in {timeout:g} s"
        finally:  # also when this run is ended from outside
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"pair": pair.name}
        if died:
            report["died"] = died
        report["wall"] = time.perf_counter() - start
    return report


def _as_dict(pair: ModelPair) -> dict[str, Any]:
    return {"family": pair.family, "reference": pair.reference, "candidate": pair.candidate, "image": pair.image}


def _child(text: str, file: Path, both: bool) -> None:
    import warnings

    warnings.filterwarnings("ignore")
    pair = ModelPair(**json.loads(text))
    report: dict[str, Any] = {"pair": pair.name}

    def note(**what: Any) -> None:
        report.update(what)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(report))
        partial.replace(file)  # whole or not at all: the process may end at any time

    note(at="build")
    try:
        reference, candidate = _build(pair)
    except Exception as error:  # noqa: BLE001  # a package that cannot build its own model is a row of the table
        note(failed="build", error=f"{type(error).__name__}: {error}")
        return
    import numpy as np

    from twinscope import align
    from twinscope.errors import WeightError

    inputs = np.random.default_rng(0).standard_normal((1, 3, pair.image, pair.image)).astype(np.float32)
    for phase, backward in (("forward", False), ("backward", True))[: 1 + both]:
        note(at=phase)
        start, spent = time.perf_counter(), time.process_time()
        try:
            result = align(reference, candidate, inputs, backward=backward)
        except WeightError as error:
            note(mapped=False, error=str(error), **{phase: {"seconds": time.perf_counter() - start}})
            return
        except Exception as error:  # noqa: BLE001
            note(failed=phase, error=f"{type(error).__name__}: {error}")
            return
        note(
            mapped=True,
            **{
                phase: {
                    "verdict": str(result.verdict),
                    "seconds": time.perf_counter() - start,
                    "cpu": time.process_time() - spent,
                    "counts": result.counts(),
                    "unmatched": len(result.unmatched),
                    "notes": list(result.notes),
                    "proof": _proof(result.weights),
                    "differs": _differences(result),
                    "findings": [str(f) for f in result.findings[:20]],
                }
            },
        )
    note(at="end")


def _differences(result: Any) -> list[str]:
    """What really differs, each cause once, with the first place of it and how often it was found."""
    found: dict[str, list[str]] = {}
    for finding in result.findings:
        if str(finding.verdict) == "MISSING":
            continue
        what = (finding.cause or finding.message).split("; replayed without it")[0]
        found.setdefault(what, []).append(str(finding.reference or finding.candidate))
    return [f"{what} at {at[0]}" + (f" and {len(at) - 1} more" if at[1:] else "") for what, at in found.items()]


def _build(pair: ModelPair) -> tuple[Any, Any]:
    """Both models with default arguments, in eval mode, from the same seed."""
    reference, candidate = pair.family.split("-")
    if "mindcv" in (reference, candidate):
        import mindspore  # before paddle: the other order does not load

        mindspore.set_seed(0)
    return _made(reference, pair.reference), _made(candidate, pair.candidate)


def _made(package: str, name: str) -> Any:
    """A model of a package, and whatever the package needs to load."""
    if package == "mindcv":
        import mindcv

        model = mindcv.create_model(name, pretrained=False)
        model.set_train(False)
        return model
    if package == "paddle":
        import paddle

        paddle.seed(0)
        model = getattr(paddle.vision.models, name)(pretrained=False)
        model.eval()
        return model
    import torch

    _let_torchvision_load(torch)
    torch.manual_seed(0)
    if package == "timm":
        import timm

        return timm.create_model(name, pretrained=False).eval()
    import torchvision

    return torchvision.models.get_model(name, weights=None).eval()


@cache
def _let_torchvision_load(torch: Any) -> Any:
    """The wheel's compiled operations need CUDA; without them its import stops at two schemas that are not there.

    What is returned must live: the definitions go with it.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _cells(report: dict[str, Any]) -> tuple[str, ...]:
    forward, backward = report.get("forward", {}), report.get("backward", {})
    mapped = {True: "mapped", False: "refused", None: "-"}[report.get("mapped")]
    proof = forward.get("proof", "-")
    seconds, cpu = (sum(p.get(what, 0.0) for p in (forward, backward)) for what in ("seconds", "cpu"))
    why = report.get("error") or "; ".join(forward.get("differs") or backward.get("differs") or [])
    if report.get("failed"):
        why = f"{report['failed']}: {why}"
    if report.get("died"):
        why = f"{report['died']} (at {report.get('at', 'start')}) {why}"
    return (
        report["pair"],
        mapped,
        proof,
        forward.get("verdict", "-"),
        backward.get("verdict", "-"),
        f"{seconds:.1f}",
        f"{cpu:.1f}",
        _short(why),
    )


def _proof(mapping: Any) -> str:
    """How much of the map running has proven; "names" where names and shapes left nothing to prove."""
    proven = sum(1 for e in mapping if e.proof)
    return f"{proven}/{len(mapping)}" if proven else "names"


def _short(text: str, most: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _row(cells: tuple[str, ...]) -> str:
    return " ".join([*(c.ljust(w) for c, w in zip(cells, WIDTHS, strict=False)), cells[-1]]).rstrip()


def _markdown(found: list[dict[str, Any]]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(report) for report in found)]
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(["# Public model pairs", "", *lines, "", _summary(found), ""])


def _summary(found: list[dict[str, Any]]) -> str:
    mapped = sum(1 for r in found if r.get("mapped"))
    same = [sum(1 for r in found if r.get(p, {}).get("verdict") == "SAME") for p in ("forward", "backward")]
    wall = sum(r["wall"] for r in found)
    return f"{len(found)} pairs: {mapped} mapped, {same[0]} same forward, {same[1]} same backward; {wall:.0f} s in all"


if __name__ == "__main__":
    sys.exit(main())
