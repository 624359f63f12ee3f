"""Which values are known to be what they should be, though the modules that return them are no pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from twinscope.boundaries import Boundaries
from twinscope.match import Pair
from twinscope.records import Kind, Phase, Record, Slot, TensorMeta, Verdict
from twinscope.result import PairResult, SlotDiff

V, W, X, Y = range(1, 5)  # values
EXACT, BUG = Verdict.EXACT, Verdict.BUG


def record(call: int, inputs: Sequence[int], outputs: Sequence[int], path: str = "net", kind: Kind = Kind.OP) -> Record:
    slots = [Slot(f"in.{n}", TensorMeta((2,), "float32"), v) for n, v in enumerate(inputs)]
    slots += [Slot(f"out.{n}", TensorMeta((2,), "float32"), v) for n, v in enumerate(outputs)]
    return Record(call, 0, kind, Phase.FORWARD, path, "torch.op", call, None, 0, tuple(slots))


def said(of: Record, *verdicts: Verdict, overall: Verdict | None = None) -> PairResult:
    """A result that says of each slot of a call what is given, in order."""
    diffs = tuple(SlotDiff(s, s, v, "tensors") for s, v in zip(of.slots, verdicts, strict=True))
    return PairResult(Pair(of, of, "op", 1.0), overall or verdicts[-1], diffs)


def settled(value: int, results: Sequence[PairResult], calls: Sequence[Record]) -> bool:
    consumers: dict[int, list[Record]] = defaultdict(list)
    for call in calls:
        for slot in call.inputs():
            consumers[slot.value].append(call)
    step = lambda r: r.reference.kind is Kind.OP  # noqa: E731
    return Boundaries(0, results, step, set(), consumers, {}).settled(value)


def test_made_alike() -> None:
    made = record(0, [X], [V])
    assert settled(V, [said(made, EXACT, EXACT)], [made])
    assert not settled(V, [said(made, EXACT, BUG)], [made])


def test_used_alike() -> None:
    used = record(0, [V], [X])
    assert settled(V, [said(used, EXACT, EXACT)], [used])
    assert not settled(V, [said(used, BUG, BUG)], [used])
    assert not settled(V, [], [used]), "nothing was said"
    assert not settled(V, [], []), "nobody uses it"


def test_made_alike_but_the_wrong_one_to_return() -> None:
    made, used = record(0, [X], [V]), record(1, [V], [Y])
    assert not settled(V, [said(made, EXACT, EXACT), said(used, BUG, BUG)], [made, used])


def test_followed_through_what_has_no_partner() -> None:
    alone, used = record(0, [V], [W]), record(1, [W], [X])
    assert settled(V, [said(used, EXACT, EXACT)], [alone, used])
    assert not settled(V, [said(used, BUG, BUG)], [alone, used])


def test_a_sum_may_hide_that_a_small_term_is_wrong() -> None:
    alone, used = record(0, [V, Y], [W]), record(1, [W], [X])
    assert not settled(V, [said(used, EXACT, EXACT)], [alone, used])
    paired = record(0, [V, Y], [W])
    assert not settled(V, [said(paired, BUG, EXACT, EXACT), said(used, EXACT, EXACT)], [paired, used])
    assert settled(V, [said(paired, EXACT, EXACT, EXACT), said(used, EXACT, EXACT)], [paired, used])


def test_every_use_counts() -> None:
    one, other, used = record(0, [V], [W]), record(1, [V], [Y]), record(2, [W], [X])
    assert not settled(V, [said(used, EXACT, EXACT)], [one, other, used])


def test_what_hands_on_its_input_is_no_use() -> None:
    identity, used = record(0, [V], [V]), record(1, [V], [X])
    assert settled(V, [said(used, EXACT, EXACT)], [identity, used])
    assert not settled(V, [], [identity])


@pytest.mark.parametrize("verdict", [EXACT, BUG])
def test_what_the_network_returns_is_used_by_its_user(verdict: Verdict) -> None:
    root = record(9, [X], [V], path="", kind=Kind.MODULE)
    assert settled(V, [said(root, EXACT, verdict)], []) == (verdict is EXACT)


def test_a_module_that_is_no_step_says_nothing() -> None:
    block = record(9, [X], [V], kind=Kind.MODULE)
    assert not settled(V, [said(block, EXACT, EXACT)], [])


def test_a_ring_ends() -> None:
    there, back = record(0, [V], [W]), record(1, [W], [V])
    assert not settled(V, [], [there, back])
