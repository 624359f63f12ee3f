"""`NetDifferenceFinder`: a torch network and its MindSpore twin on the same inputs, with one call."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import twinscope

from ..answer import Answer
from ..console import say
from .arrays import Compared, compared, shown
from .problems import ArgumentError
from .weights import convert_weight_and_load, get_weight_map

_FIELDS = (
    "PyTorch out",
    "MindSpore out",
    "result of allclose",
    "ratio of allclose",
    "cosine similarity",
    "mean & max diffs",
)
_LINE = 141


class NetDifferenceFinder:
    """Gives the second network the first one's weights, runs both on the same inputs, and compares what comes out.

    ::

        finder = ts.migrator.NetDifferenceFinder(pt_net, ms_net)
        finder.compare(auto_inputs=(((1, 12), np.float32),))
        finder.compare(inputs=[(a, b), (c, d)], rtol=1e-5, atol=1e-5)

    `print_level` 0 prints the tables alone. Further keywords: `pt_params_path` and `ms_params_path`, checkpoints to
    start from; `auto_conv_ckpt=0` leaves the weights as they are; `compare_params=False` leaves out their comparison;
    `fix_seed` (16) seeds what is random. Networks of any two frameworks are taken. Both are run in evaluation mode and
    left as they were, but for the weights.
    """

    def __init__(self, pt_net: Any, ms_net: Any, print_level: int = 1, **kwargs: Any) -> None:
        legal = {"pt_params_path", "ms_params_path", "auto_conv_ckpt", "compare_params", "fix_seed"}
        strange = sorted(set(kwargs) - legal)
        if strange:
            raise ArgumentError(
                f"NetDifferenceFinder() knows no {', '.join(map(repr, strange))}",
                hint=f"legal are {', '.join(sorted(legal))}",
            )
        self.pt_net = pt_net
        self.ms_net = ms_net
        self.print_level = print_level
        self.pt_params_path = kwargs.get("pt_params_path")
        self.ms_params_path = kwargs.get("ms_params_path")
        self.auto_conv_ckpt = kwargs.get("auto_conv_ckpt", 1)
        self.compare_params = kwargs.get("compare_params", True)
        self.fix_seed = kwargs.get("fix_seed", 16)
        if self.auto_conv_ckpt not in (0, 1, 2):
            raise ArgumentError(f"auto_conv_ckpt={self.auto_conv_ckpt!r} is unknown", hint="legal are 0, 1 and 2")
        if self.ms_params_path and not self.pt_params_path and self.auto_conv_ckpt:
            raise ArgumentError(
                "with ms_params_path alone nothing is converted", hint="pass auto_conv_ckpt=0, or pt_params_path too"
            )

    def compare(
        self,
        inputs: Any = None,
        auto_inputs: Any = None,
        rtol: float = 1e-4,
        atol: float = 1e-4,
        equal_nan: bool = False,
    ) -> Answer[tuple[twinscope.Result, ...]]:
        """Run both networks on each of the inputs and print how far their outputs are apart.

        `inputs` is a tuple of arrays, tensors or paths of .npy files, or a list of such tuples. `auto_inputs` makes
        them up: ``(((1, 12), np.float32), ...)`` for each argument its shape and dtype, or
        ``{"input": ..., "num": 3}`` for several. The answer is true when all outputs are close; its `result` has what
        `twinscope.align` says of each, without a tolerance.
        """
        cases = self._cases(inputs, auto_inputs)
        self._weights()
        if self.compare_params:
            self._compare_weights(rtol, atol, equal_nan)
        if self.print_level:
            say(f"{'Start Performing Network Inference':=^{_LINE}}")
        rows: list[Compared] = []
        for number, case in enumerate(cases):
            if self.print_level:
                say(f"{f'Start case {number} inference':-^{_LINE}}")
            rows += self._case(number, case, rtol, atol, equal_nan)
        shown(rows, title="The comparison results of Net", field_names=_FIELDS)
        return Answer(all(rows), lambda: tuple(self._aligned(case) for case in cases))

    def _aligned(self, case: tuple[Any, ...]) -> twinscope.Result:
        return twinscope.align(self.pt_net, self.ms_net, case, weights=False, backward=False, seed=self.fix_seed or 0)

    def _case(self, number: int, case: tuple[Any, ...], rtol: float, atol: float, equal_nan: bool) -> list[Compared]:
        first, second = (twinscope.outputs_of(net, case, seed=self.fix_seed or 0) for net in (self.pt_net, self.ms_net))
        if len(first) != len(second):
            raise ArgumentError(
                f"case {number}: the first network gives {len(first)} tensors, the second {len(second)}",
                hint="let both return the same outputs",
            )
        return [
            compared(
                (f"step_{number}_{one.replace('.', '_')}", f"step_{number}_{other.replace('.', '_')}"),
                first[one],
                second[other],
                rtol,
                atol,
                equal_nan,
            )
            for one, other in zip(first, second, strict=True)
        ]

    # -- weights -------------------------------------------------------------------------------------------------------

    def _weights(self) -> None:
        for net, path in ((self.pt_net, self.pt_params_path), (self.ms_net, self.ms_params_path)):
            if path:
                weights = twinscope.Weights.of(net)
                described = twinscope.Weights.from_json(weights.to_json(), twinscope.read_checkpoint(path), str(path))
                twinscope.copy_weights(described, net)
        if not self.auto_conv_ckpt or (self.pt_params_path and self.ms_params_path):
            return
        if self.print_level:
            say(f"{'Start Converting PyTorch Weights to MindSpore':=^{_LINE}}")
            with self._saved() as place:
                convert_weight_and_load(place / "map.json", next(place.glob("net.*")), self.ms_net)
        else:
            twinscope.copy_weights(self.pt_net, self.ms_net)

    def _saved(self) -> _Saved:
        return _Saved(self.pt_net)

    def _compare_weights(self, rtol: float, atol: float, equal_nan: bool) -> None:
        if not self.print_level:
            return
        say(f"{'Start comparing PyTorch and MindSpore parameters':=^{_LINE}}")
        first, second = twinscope.Weights.of(self.pt_net), twinscope.Weights.of(self.ms_net)
        mapping = twinscope.map_weights(first, second)
        own = second.reader()
        rows = [
            compared((" + ".join(entry.reference), path), array, own(path), rtol, atol, equal_nan)
            for entry, path, array in mapping.arrays(first.reader())
        ]
        fields = ("Parameter name of torch", "Parameter name of MindSpore", *_FIELDS[2:])
        shown(rows, title="The list of comparison results for values", field_names=fields)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _cases(self, inputs: Any, auto_inputs: Any) -> list[tuple[Any, ...]]:
        given = self._made_up(auto_inputs) if auto_inputs is not None else inputs
        cases = [given] if isinstance(given, tuple) else given
        if not isinstance(cases, list) or not cases or not all(isinstance(case, tuple) for case in cases):
            raise ArgumentError(
                "inputs must be a tuple, or a list of tuples, of what the networks take", hint="write inputs=(x,)"
            )
        return [tuple(_loaded(value) for value in case) for case in cases]

    def _made_up(self, wanted: Any) -> Any:
        random = np.random.default_rng(self.fix_seed or None)
        if isinstance(wanted, dict):
            if set(wanted) != {"input", "num"} or not isinstance(wanted["num"], int) or wanted["num"] < 1:
                raise ArgumentError(
                    "auto_inputs needs 'input' and 'num'", hint='write {"input": (((1, 12), np.float32),), "num": 3}'
                )
            return [_random(wanted["input"], random) for _ in range(wanted["num"])]
        return _random(wanted, random)


class _Saved:
    """A network's weights and their map in a directory that goes away."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._place = tempfile.TemporaryDirectory(prefix="net_diff_finder_")

    def __enter__(self) -> Path:
        place = Path(self._place.name)
        framework = twinscope.Weights.of(self._net).framework
        extension = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}.get(framework, ".safetensors")
        twinscope.save_checkpoint(self._net, place / f"net{extension}")
        get_weight_map(self._net, weight_map_save_path=place / "map.json")
        return place

    def __exit__(self, *_: object) -> None:
        self._place.cleanup()


def _random(wanted: Any, random: np.random.Generator) -> tuple[Any, ...]:
    try:
        pairs: Sequence[Any] = [(tuple(shape), np.dtype(dtype)) for shape, dtype in wanted]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"auto_inputs cannot be read: {error}", hint="write (((1, 12), np.float32),): shape and dtype of each"
        ) from error
    return tuple(random.standard_normal(shape).astype(dtype) for shape, dtype in pairs)


def _loaded(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return np.load(value, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{value} cannot be read: {error}", hint="name a .npy file") from error
    return twinscope.as_array(value)
