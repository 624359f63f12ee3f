"""Every adapter keeps the contract on every network of the zoo; and the suite notices an adapter that does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from twinscope import Inputs
from twinscope.adapters._registry import by_name
from twinscope.testing import Case, conformance
from zoo import NAMES, zoo

pytestmark = pytest.mark.filterwarnings("ignore")


def case(framework: str, name: str) -> Case:
    entry = zoo(framework)[name]
    return Case(name, entry.build, Inputs(*entry.args(), **entry.kwargs()), entry.raises, entry.backward)


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_holds(framework: str, name: str) -> None:
    report = conformance(by_name(framework), [case(framework, name)])
    assert report, str(report)
    assert len(report.checks) >= 4


def broken(framework: str, **replaced: Any) -> Any:
    """The framework's adapter with some methods replaced by wrong ones."""
    cls = type(by_name(framework))
    return type(f"Broken{cls.__name__}", (cls,), replaced)()


def failures(framework: str, adapter: Any, name: str = "mlp") -> str:
    report = conformance(adapter, [case(framework, name)])
    assert not report
    return "\n".join(f"{c.name}: {c.problem}" for c in report.failures)


def test_an_observer_that_changes_numbers_is_caught(framework: str) -> None:
    real = by_name(framework)

    @contextmanager
    def observe(self: Any, model: Any, sink: Any, level: Any) -> Iterator[None]:
        for _, module in real.modules(model):
            for tensor in real.state(module).values():
                real.assign(tensor, real.to_numpy(tensor) * np.float32(1.5))
        with real.observe(model, sink, level):
            yield

    assert "untouched numbers: " in failures(framework, broken(framework, observe=observe))


def test_a_mark_left_on_the_users_model_is_caught(framework: str) -> None:
    real = by_name(framework)

    @contextmanager
    def observe(self: Any, model: Any, sink: Any, level: Any) -> Iterator[None]:
        with real.observe(model, sink, level):
            yield
        object.__setattr__(model, "left_behind", True)

    assert "left_behind" in failures(framework, broken(framework, observe=observe))


def test_an_observer_that_sees_nothing_is_caught(framework: str) -> None:
    @contextmanager
    def observe(self: Any, model: Any, sink: Any, level: Any) -> Iterator[None]:
        yield

    text = failures(framework, broken(framework, observe=observe))
    assert "no module call was told" in text
    assert "trace: 0 records of the root's forward" in text


def test_wrong_gradients_are_caught(framework: str) -> None:
    real = by_name(framework)

    def watch_gradient(self: Any, tensor: Any, callback: Any) -> Any:
        return real.watch_gradient(tensor, lambda g: callback(g * 2))

    assert "its gradient says" in failures(framework, broken(framework, watch_gradient=watch_gradient))


def test_lost_precision_is_caught(framework: str) -> None:
    def to_numpy(self: Any, tensor: Any) -> Any:
        array = by_name(framework).to_numpy(tensor)
        return array.astype(np.float32) if array.dtype == np.float64 else array

    assert "float64 came back as float32" in failures(framework, broken(framework, to_numpy=to_numpy))


def test_nothing_to_check_is_an_error(framework: str) -> None:
    with pytest.raises(ValueError, match="no cases"):
        conformance(by_name(framework), [])
