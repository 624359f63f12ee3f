"""What PaDiff 0.3 prints of a difference: stage, types, routes, the numbers, and both models with the place marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinscope import Finding, Phase, Result, Verdict

from ..console import say
from .mismatch import mismatch
from .stacks import stack_text
from .trees import titled, tree_of_calls

LOG = "[AutoDiff] "
_STAGES = {
    Phase.WEIGHT: "Weight",
    Phase.BUFFER: "Buffer",
    Phase.FORWARD: "Forward",
    Phase.BACKWARD: "Backward",
    Phase.GRADIENT: "Grad",
    Phase.STEP: "Optimizer",
}


def only_conventions(result: Result) -> bool:
    """Whether nothing differs but the running variance of batch norms, by how the frameworks count; says so.

    PyTorch divides by one less than Paddle and MindSpore do: no port can help that, and PaDiff never looked at it.
    """
    wrong = [f for f in result.findings if f.verdict is Verdict.BUG]
    ours = [f for f in wrong if f.phase is Phase.BUFFER and "(ddof)" in (f.cause or "")]
    if not wrong or len(ours) < len(wrong):
        return False
    for finding in ours:
        say(f"    Note: {finding.reference}: {finding.cause}", LOG)
    return True


def wrongly_mapped(result: Result, mapped: Mapping[str, str]) -> bool:
    """Whether layers that the layer maps pair compute something else, although the networks do not; says so."""
    wrong = {
        (p.reference.path, p.candidate.path)
        for p in result.pairs
        if p.rejoins and p.reference.kind.value == "module" and mapped.get(p.reference.path) == p.candidate.path
    }
    for first, second in sorted(wrong):
        say(f"    The layer map pairs {first} and {second}, which do not compute the same. Check its order.", LOG)
    return bool(wrong)


def say_failed(result: Result, names: tuple[str, str], tolerance: dict[str, Any]) -> None:
    """Where the two models first part, and by how much."""
    say("FAILED !!!", LOG)
    finding = result.first_divergence or next(iter(result.findings), None)
    if finding is None:
        say("    nothing differs, but not everything could be compared:", LOG)
        for note in result.notes:
            say(f"        {note}")
        return
    stage = _STAGES.get(finding.phase, str(finding.phase).capitalize())
    say(f"    Diff found in {stage} Stage in step: {finding.step}", LOG)
    say(f"    {finding.message}", LOG)
    if finding.cause:
        say(f"    Cause: {finding.cause}", LOG)
    if finding.pair is not None:
        _say_pair(result, finding, names, tolerance)
    else:
        for word, name, path in zip(("Route:", "      "), names, (finding.reference, finding.candidate), strict=True):
            say(f"    {word} {name}{'' if path is None else f'.{path}'}", LOG)
    others = [f for f in result.findings if f is not finding]
    for other in others[:10]:
        say(f"    also: {other}", LOG)


def _say_pair(result: Result, finding: Finding, names: tuple[str, str], tolerance: dict[str, Any]) -> None:
    pair = finding.pair
    assert pair is not None
    sides = (pair.reference, pair.candidate)
    say(f"    Type of layer is: {sides[0].type} vs {sides[1].type}", LOG)
    say(f"    Route: {_route(names[0], sides[0])}", LOG)
    say(f"           {_route(names[1], sides[1])}", LOG)
    say()
    worst = pair.worst
    if worst is not None and result.traces is not None:
        left, right = result.tensors(pair, worst)
        if left is not None and right is not None:
            say(mismatch(left, right, **tolerance))
        elif worst.metrics is not None:
            say(f"Mean absolute difference: {worst.metrics.mean_abs:.8g}")
            say(f"Max absolute difference: {worst.metrics.max_abs:.8g}")
            say(f"Max relative difference: {worst.metrics.max_rel:.8g}")
        if worst.note:
            say(worst.note)
        say()
    if result.traces is None or any(not r.slots or r.kind.value == "state" for r in sides):
        return
    say("Check model struct:", LOG)
    for trace, record, name in zip(result.traces, sides, names, strict=True):
        step = [r for r in trace.records if r.step == record.step]
        if any(r.path == "" and r.kind.value == "module" and r.phase is Phase.FORWARD for r in step):
            inside = lambda r: r.kind.value == "op" and r.builtin and r.call_id != record.call_id  # noqa: E731, B023
            say(titled(name, tree_of_calls(step, name, here=[record.call_id], hidden=inside)))
            say()
    for trace, record, name in zip(result.traces, sides, names, strict=True):
        own = next((r for r in trace.records if r.call_id == record.call_id and r.phase is Phase.FORWARD), record)
        if own.stack:
            say(f"{name} stacks:\n{'=' * 25}\n{stack_text(own)}\n")
        elif own.source is not None:
            where = f"File {own.source.file}: {own.source.line}    {own.source.function}"
            say(f"{name} stacks:\n{'=' * 25}\n         {where}\n")


def _route(name: str, record: Any) -> str:
    path = f"{name}.{record.path}" if record.path else name
    return f"{path} · {record.type}" if record.kind.value == "op" else path
