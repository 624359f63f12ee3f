"""Networks that compute the same and draw the boundaries of their modules elsewhere; and what is really another one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from twinscope import InputPair, Overall, Phase, Result, align
from twinscope.adapters._registry import by_name
from zoo import normal
from zoo.kits import kit

pytestmark = pytest.mark.filterwarnings("ignore")


def parts(framework: str) -> Any:
    """The kit of a framework with norms, activations as layers, and a norm that activates too."""
    if framework == "torch":
        import torch
        from torch import nn

        norm, base, forward = nn.BatchNorm2d, nn.BatchNorm2d, "forward"
        relu, gelu, silu = nn.ReLU, nn.GELU, nn.SiLU
        mean, detach = lambda x: torch.mean(x, (2, 3)), lambda x: x.detach()
        bare = lambda i, o, k, stride=1, padding=0: nn.Conv2d(i, o, k, stride, padding, bias=False)  # noqa: E731
    elif framework == "paddle":
        import paddle
        from paddle import nn

        norm, base, forward = nn.BatchNorm2D, nn.BatchNorm2D, "forward"
        relu, gelu, silu = nn.ReLU, nn.GELU, nn.Silu
        mean, detach = lambda x: paddle.mean(x, [2, 3]), lambda x: x.detach()
        bare = lambda i, o, k, stride=1, padding=0: nn.Conv2D(i, o, k, stride, padding, bias_attr=False)  # noqa: E731
    else:
        from mindspore import nn, ops

        norm, base, forward = lambda n: nn.BatchNorm2d(n, eps=1e-5, momentum=0.9), nn.BatchNorm2d, "construct"
        relu, gelu, silu = nn.ReLU, lambda: nn.GELU(approximate=False), nn.SiLU
        mean, detach = lambda x: ops.mean(x, (2, 3)), ops.stop_gradient
        bare = lambda i, o, k, stride=1, padding=0: nn.Conv2d(  # noqa: E731
            i, o, k, stride, pad_mode="pad", padding=padding, has_bias=False
        )

    def activates_too(self: Any, x: Any) -> Any:
        x = getattr(base, forward)(self, x)
        return x if self.act is None else self.act(x)

    norm_act_class = type("NormAct", (base,), {forward: activates_too})

    def norm_act(n: int, act: Any) -> Any:
        made = norm_act_class(n, eps=1e-5, momentum=0.9) if framework == "mindspore" else norm_act_class(n)
        made.act = act
        return made

    return SimpleNamespace(
        **{**vars(kit(framework)), "relu": relu, "gelu": gelu, "silu": silu},
        mean=mean,
        detach=detach,
        norm=norm,
        norm_act=norm_act,
        bare=bare,
    )


def _act(k: Any, name: str) -> Any:
    return {"relu": k.relu, "gelu": k.gelu, "none": lambda: None}[name]()


# -- the networks, each written in two forms ---------------------------------------------------------------------------


def normed(framework: str, form: str, fault: str, ends: bool = False) -> Any:
    """Norms that activate too, or norms with the activations after them."""
    k = parts(framework)
    names = {"": ("relu", "relu"), "other": ("gelu", "relu"), "missing": ("none", "relu")}
    names |= {"last other": ("relu", "gelu"), "last missing": ("relu", "none")}

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            first, second = names[fault]
            self.conv1, self.conv2 = k.bare(3, 4, 3), k.bare(4, 5, 3)
            if form == "inside":
                self.bn1, self.bn2 = k.norm_act(4, _act(k, first)), k.norm_act(5, _act(k, second))
            else:
                self.bn1, self.bn2 = k.norm(4), k.norm(5)
                self.act1, self.act2 = _act(k, first), _act(k, second)
            if not ends:
                self.head = k.conv(5, 2, 1)

        def forward(self, x: Any) -> Any:
            x = self.bn1(self.conv1(x))
            if form == "outside" and self.act1 is not None:
                x = self.act1(x)
            x = self.bn2(self.conv2(x))
            if form == "outside" and self.act2 is not None:
                x = self.act2(x)
            return x if ends else self.head(x)

    return Net()


def branch(framework: str, form: str, fault: str, ends: bool = False) -> Any:
    """One container for two convolutions, or a container for each."""
    k = parts(framework)
    stride = 1 if fault == "stride" else 2
    last = {"other": [k.gelu], "missing": []}.get(fault, [k.relu])

    class Pair(k.Module):
        def __init__(self) -> None:
            super().__init__()
            first = [k.bare(4, 4, 3, stride, 1), k.norm(4)]
            second = [k.bare(4, 6, 1), k.norm(6), *(layer() for layer in last)]
            if form == "together":
                self.branch = k.sequential(*first, *second)
            else:
                self.reduce, self.mix = k.sequential(*first), k.sequential(*second)

        def forward(self, x: Any) -> Any:
            return self.branch(x) if form == "together" else self.mix(self.reduce(x))

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = k.conv(3, 4, 3)
            self.block = Pair()
            if not ends:
                self.head = k.linear(6, 2)

        def forward(self, x: Any) -> Any:
            x = self.block(self.stem(x))
            return x if ends else self.head(k.mean(x))

    return Net()


def stages(framework: str, form: str, fault: str, ends: bool = False) -> Any:
    """The reduction between two stages at the start of the second or at the end of the first."""
    k = parts(framework)

    class Down(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = k.bare(4, 6, 3, 1 if fault == "stride" else 2, 1)
            self.bn = k.norm(6)

        def forward(self, x: Any) -> Any:
            x = self.bn(self.conv(x))
            return x * 1.1 if fault == "last" else x

    class Block(k.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.conv, self.act = k.conv(n, n, 3, 1, 1), k.gelu() if fault == "act" else k.relu()

        def forward(self, x: Any) -> Any:
            return x + self.act(self.conv(x))

    class Stage(k.Module):
        def __init__(self, n: int, reduces: str) -> None:
            super().__init__()
            self.reduces = reduces
            if reduces == "start":
                self.down = Down()
            self.blocks = k.sequential(Block(n), Block(n), Block(n))
            if reduces == "end":
                self.down = Down()

        def forward(self, x: Any) -> Any:
            x = self.blocks(self.down(x) if self.reduces == "start" else x)
            return self.down(x) if self.reduces == "end" else x

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = k.conv(3, 4, 3)
            self.stage1 = Stage(4, "end" if form == "end" else "no")
            self.stage2 = Stage(6, "start" if form == "start" else "no")
            if not ends:
                self.head = k.linear(6, 2)

        def forward(self, x: Any) -> Any:
            x = self.stage2(self.stage1(self.stem(x)))
            return x if ends else self.head(k.mean(x))

    return Net()


def layered(framework: str, form: str, fault: str, ends: bool = False) -> Any:
    """The activation as the last layer of the container, or after it."""
    k = parts(framework)

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            acts = {"other": [k.gelu()], "missing": []}.get(fault, [k.relu()])
            self.layers = k.sequential(k.bare(3, 4, 3), k.norm(4), *(acts if form == "inside" else []))
            self.act = acts[0] if acts and form == "outside" else None
            if not ends:
                self.head = k.conv(4, 2, 1)

        def forward(self, x: Any) -> Any:
            x = self.layers(x)
            if self.act is not None:
                x = self.act(x)
            return x if ends else self.head(x)

    return Net()


FORMS = {
    normed: ("inside", "outside"),
    branch: ("together", "apart"),
    stages: ("start", "end"),
    layered: ("inside", "outside"),
}


def run(pair: tuple[str, str], models: Sequence[Any], *, training: bool = False, **options: Any) -> Result:
    """`align` in eval mode unless told otherwise, the reference's vectors made random first."""
    for framework, model in zip(pair, models, strict=True):
        if framework == "mindspore":
            model.set_train(training)
        else:
            model.train() if training else model.eval()
    adapter, random = by_name(pair[0]), np.random.default_rng(5)
    for _, module in adapter.modules(models[0]):
        for tensor in adapter.state(module).values():
            value = np.asarray(adapter.to_numpy(tensor))
            if value.ndim == 1 and value.dtype == np.float32:
                adapter.assign(tensor, random.uniform(0.4, 1.6, value.shape).astype(np.float32))
    return align(*models, normal(2, 3, 11, 11), **options)


def compared(
    pair: tuple[str, str],
    network: Any,
    forms: Sequence[str],
    fault: str,
    *,
    ends: bool,
    faulty: int = 1,
    **options: Any,
) -> Result:
    """The two forms of a network, one of them with a fault, compared."""
    models = [
        network(framework, form, fault if side == faulty else "", ends)
        for side, (framework, form) in enumerate(zip(pair, forms, strict=True))
    ]
    return run(pair, models, **options)


def places(result: Result) -> str:
    first = result.first_divergence
    assert first is not None, result
    return f"{first.reference} | {first.candidate}: {first.message}"


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends there"])
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("network", FORMS, ids=lambda n: n.__name__)
def test_other_boundaries_are_no_difference(pair: tuple[str, str], network: Any, turned: bool, ends: bool) -> None:
    forms = FORMS[network][::-1] if turned else FORMS[network]
    result = compared(pair, network, forms, "", ends=ends)
    assert result.verdict is Overall.SAME, str(result)
    assert not result.findings, str(result)


#: By network and fault: what the first divergence must name, on the side that has the fault and on the other one.
FAULTS = {
    (normed, "other"): ("gelu", "relu"),
    (normed, "missing"): ("bn1", "bn1"),
    (normed, "last other"): ("gelu", "relu"),
    (normed, "last missing"): ("bn2", "bn2"),
    (branch, "stride"): ("block.", "shapes differ"),
    (branch, "other"): ("gelu", "relu"),
    (branch, "missing"): ("block", "relu() in block."),
    (stages, "stride"): ("down.conv", "shapes differ"),
    (stages, "act"): ("blocks.0.act", "gelu"),
    (stages, "last"): ("stage1.down", "stage2.down"),
    (layered, "other"): ("gelu", "relu"),
    (layered, "missing"): ("layers", "relu"),
}


@pytest.mark.parametrize("faulty", [0, 1], ids=["in the reference", "in the candidate"])
@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends there"])
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize(("network", "fault"), FAULTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_fault_at_a_boundary_is_found_there(
    pair: tuple[str, str], network: Any, fault: str, turned: bool, ends: bool, faulty: int
) -> None:
    forms = FORMS[network][::-1] if turned else FORMS[network]
    result = compared(pair, network, forms, fault, ends=ends, faulty=faulty)
    assert result.verdict is Overall.DIFFERENT, str(result)
    named = places(result)
    assert all(name.lower() in named.lower() for name in FAULTS[network, fault]), named


# -- other forms of the same -------------------------------------------------------------------------------------------


def smooth(framework: str, form: str, fault: str) -> Any:
    """A norm that activates by the swish's formula, or a norm with the framework's own layer after it."""
    k = parts(framework)

    class Swish(k.Module):
        def forward(self, x: Any) -> Any:
            half = x * (0.55 if fault else 0.5)
            return half * (k.tanh(half) + 1.0)

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = k.bare(3, 4, 3), k.conv(4, 5, 3)
            self.bn = k.norm_act(4, Swish()) if form == "inside" else k.norm(4)
            self.act = None if form == "inside" else k.silu()

        def forward(self, x: Any) -> Any:
            x = self.bn(self.conv1(x))
            return self.conv2(x if self.act is None else self.act(x))

    return Net()


@pytest.mark.parametrize("fault", ["", "other"])
@pytest.mark.parametrize("forms", [("inside", "outside"), ("outside", "inside")], ids="-".join)
def test_an_activation_written_out_in_the_norm(pair: tuple[str, str], forms: tuple[str, str], fault: str) -> None:
    models = [smooth(framework, form, fault) for framework, form in zip(pair, forms, strict=True)]
    result = run(pair, models)
    assert result.verdict is (Overall.DIFFERENT if fault else Overall.SAME), str(result)
    if fault:
        assert "bn" in places(result), places(result)
    else:
        assert any("end elsewhere" in note for note in result.notes), str(result)


def forgetful(framework: str, fault: bool, ends: bool) -> Any:
    """A block that activates, and may then return what it had before."""
    k = parts(framework)

    class Block(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = k.conv(3, 4, 3), k.relu()

        def forward(self, x: Any) -> Any:
            before = self.conv(x)
            after = self.act(before)
            return before if fault else after

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Block(), None if ends else k.conv(4, 2, 1)

        def forward(self, x: Any) -> Any:
            x = self.block(x)
            return x if ends else self.head(x)

    return Net()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends there"])
@pytest.mark.parametrize("faulty", [0, 1], ids=["in the reference", "in the candidate"])
def test_a_block_that_returns_another_of_its_tensors(pair: tuple[str, str], faulty: int, ends: bool) -> None:
    result = run(pair, [forgetful(framework, side == faulty, ends) for side, framework in enumerate(pair)])
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and result.first_divergence.reference == "block", str(result)


@pytest.mark.parametrize("options", [{"level": "module"}, {"keep": "stats"}], ids=str)
@pytest.mark.parametrize("fault", ["", "other", "missing"])
def test_norms_with_less_recorded(pair: tuple[str, str], fault: str, options: dict[str, Any]) -> None:
    for forms in (FORMS[normed], FORMS[normed][::-1]):
        result = compared(pair, normed, forms, fault, ends=False, **options)
        assert result.verdict is (Overall.DIFFERENT if fault else Overall.SAME), str(result)


@pytest.mark.parametrize("fault", ["", "other", "missing"])
def test_norms_in_training(pair: tuple[str, str], fault: str) -> None:
    calls = ("forward", "backward", "gradient")  # which variance the buffers keep is a matter of each framework
    for forms in (FORMS[normed], FORMS[normed][::-1]):
        result = compared(pair, normed, forms, fault, ends=False, training=True, phases=calls)
        assert result.verdict is (Overall.DIFFERENT if fault else Overall.SAME), str(result)


# -- gradients ---------------------------------------------------------------------------------------------------------


def bending(framework: str, form: str, fault: bool) -> Any:
    """`normed`, with an activation whose gradient may be twice the right one."""
    k = parts(framework)

    class Bend(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = k.relu()

        def forward(self, x: Any) -> Any:
            y = self.act(x)
            return k.detach(y) + (y - k.detach(y)) * 2.0 if fault else y

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = k.bare(3, 4, 3), k.conv(4, 5, 3)
            self.bn = k.norm_act(4, Bend()) if form == "inside" else k.norm(4)
            self.act = None if form == "inside" else Bend()

        def forward(self, x: Any) -> Any:
            x = self.bn(self.conv1(x))
            return self.conv2(x if self.act is None else self.act(x))

    return Net()


@pytest.mark.parametrize("faulty", [None, 0, 1], ids=["right", "in the reference", "in the candidate"])
@pytest.mark.parametrize("forms", [("inside", "outside"), ("outside", "inside")], ids="-".join)
def test_gradients_across_other_boundaries(pair: tuple[str, str], forms: tuple[str, str], faulty: int | None) -> None:
    models = [bending(f, form, side == faulty) for side, (f, form) in enumerate(zip(pair, forms, strict=True))]
    result = run(pair, models)
    assert result.verdict is (Overall.SAME if faulty is None else Overall.DIFFERENT), str(result)
    if faulty is not None:
        first = result.first_divergence
        assert first is not None and first.phase in (Phase.BACKWARD, Phase.GRADIENT)


def dense(framework: str, form: str, fault: bool) -> Any:
    """Layers that see all before them: one row that grows, or all of it concatenated anew for each layer."""
    k = parts(framework)
    depth = 15

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = k.modules([k.norm(3 + 2 * n) for n in range(depth)])
            self.convs = k.modules([k.conv(3 + 2 * n, 2, 3, 1, 1) for n in range(depth)])

        def forward(self, x: Any) -> Any:
            row, all_of_it = [x], x
            for n in range(depth):
                given = all_of_it if form == "grows" else k.cat(row, 1)
                new = self.convs[n](self.norms[n](given))
                if fault and n == 4:
                    new = k.detach(new) + (new - k.detach(new)) * 2.0
                row.append(new)
                all_of_it = k.cat([all_of_it, new], 1)
            return all_of_it if form == "grows" else k.cat(row, 1)

    return Net()


@pytest.mark.parametrize("faulty", [None, 0, 1], ids=["right", "in the reference", "in the candidate"])
@pytest.mark.parametrize("forms", [("grows", "anew"), ("anew", "grows")], ids="-".join)
def test_gradients_of_a_long_row_of_concatenations(
    pair: tuple[str, str], forms: tuple[str, str], faulty: int | None
) -> None:
    models = [dense(f, form, side == faulty) for side, (f, form) in enumerate(zip(pair, forms, strict=True))]
    result = run(pair, models)
    assert result.verdict is (Overall.SAME if faulty is None else Overall.DIFFERENT), str(result)


def flipping(framework: str, bend: float) -> Any:
    """Two layers that hand on what they are given, then a kink; the gradient may be bent between the layers."""
    k = parts(framework)

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.act, self.last = k.bare(4, 4, 1), k.bare(4, 4, 1), k.relu(), k.conv(4, 3, 3)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            x = self.second(x if bend == 1.0 else k.detach(x) + (x - k.detach(x)) * bend)
            return self.last(self.act(x))

    model = Net()
    adapter = by_name(framework)
    for path, module in adapter.modules(model):
        if path.path in ("first", "second"):
            adapter.assign(adapter.state(module)["weight"], np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1))
    return model


@pytest.mark.parametrize("bend", [1.0, 1.05])
def test_a_flip_does_not_leave_all_upstream_undecided(pair: tuple[str, str], bend: float) -> None:
    """One value is zero on one side and a little more on the other: one gradient passes there and one does not."""
    here = normal(1, 4, 12, 12)
    here[0, 0, 5, 5] = 0.0
    there = here.copy()
    there[0, 0, 5, 5] = 1e-7
    models = [flipping(framework, 1.0 if side == 0 else bend) for side, framework in enumerate(pair)]
    result = align(*models, InputPair(here, there))
    assert any("kink" in note for note in result.notes), str(result)
    assert (result.verdict is Overall.SAME) == (bend == 1.0), str(result)
