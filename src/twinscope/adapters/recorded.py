"""A framework that is not here: all that is known of it is a trace that was made with it."""

from __future__ import annotations

from typing import Any

from ..records import Record
from ..replaying import KeptCall
from ..store import Trace
from .base import Adapter


class RecordedAdapter(Adapter):
    """Stands for the framework of a trace where its models cannot be run: it has a name, and knows no model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_model(self, obj: object) -> bool:
        return False

    def is_tensor(self, obj: object) -> bool:
        return False

    def function(self, name: str) -> None:
        return None


def recorded_call(record: Record, trace: Trace) -> KeptCall:
    """A call as a trace tells of it, which cannot be made again: its target is None."""
    arrays: dict[str, Any] = {s.name: trace.tensor(s) for s in record.slots}
    inputs = [s for s in record.inputs() if arrays[s.name] is not None]
    outputs = [s for s in record.outputs() if arrays[s.name] is not None]
    return KeptCall(
        args=(),
        kwargs=dict(record.args),
        inputs=tuple(arrays[s.name] for s in inputs),
        outputs=tuple(arrays[s.name] for s in outputs),
        kind=record.kind,
        path=record.path,
        type=record.type,
        nth=record.nth,
        number=record.call_id,
        parent=record.parent_id,
        target=None,
        input_names=tuple(s.name for s in inputs),
        output_names=tuple(s.name for s in outputs),
        params=tuple(s.param for s in inputs),
        training=record.training,
    )
