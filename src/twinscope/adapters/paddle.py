"""PaddlePaddle.

Paddle has no mode that sees its public calls, and patching its namespaces would miss ``from paddle.nn.functional import
relu`` done before, functions kept in a dict, a closure or a default argument, and what Paddle itself re-installs into
its namespaces. But nearly all of its public API, `Layer.__call__` and most Tensor methods included, are plain Python
functions, so while a model is watched their ``__code__`` is swapped: the function objects stay the very same, wherever
anyone holds them, and no namespace changes. What is not a Python function is replaced by attribute for the while:

- operators and a few methods of the Tensor type, which are C methods;
- ``paddle._C_ops``, through which everything reaches the kernels: a call that no public function made is told under the
  name of the outermost Paddle function around it, so nothing is lost;
- those few C functions that Paddle, or the user, re-exports (``paddle.linalg.matmul``), in every module that has them;
- ``core.eager.run_backward``, to know that a backward pass is running.

Everything prepared is kept for the process; to begin and to end costs two or three milliseconds, a watched call one
or two microseconds. All state is per thread: where nothing is watched, a swapped function goes straight on to its
original. Not seen: a re-exported C function that the user keeps in a dict or closure of their own, and calls made
inside programs compiled by ``paddle.jit``.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle import nn
from paddle.base import core

from ..errors import WeightError
from ..records import Level, ModuleInfo, ParamInfo, TensorMeta
from .altering import paddle as altering
from .base import Adapter, Array, Learned, PulledBack, Sink, plain_attributes, rebuilt
from .optimizing import Told
from .optimizing import paddle as optimizing

_ROOT = os.path.dirname(os.path.abspath(paddle.__file__)) + os.sep

_Tensor: Any = paddle.Tensor
_Recurrent: Any = nn.LSTM.__mro__[1]
_Parameter: Any = paddle.base.framework.EagerParamBase

#: Class name -> neutral kind, looked up along the MRO, so that a user's subclass of nn.Linear is still "linear".
_KINDS: dict[str, str] = {
    "Linear": "linear",
    "Bilinear": "bilinear",
    **{f"Conv{d}D": f"conv{d}d" for d in (1, 2, 3)},
    **{f"Conv{d}DTranspose": f"conv_transpose{d}d" for d in (1, 2, 3)},
    **{f"BatchNorm{d}D": f"batch_norm{d}d" for d in (1, 2, 3)},
    "BatchNorm": "batch_norm",
    "SyncBatchNorm": "sync_batch_norm",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    **{f"InstanceNorm{d}D": f"instance_norm{d}d" for d in (1, 2, 3)},
    "RMSNorm": "rms_norm",
    "FusedRMSNorm": "rms_norm",
    "LocalResponseNorm": "local_response_norm",
    "Embedding": "embedding",
    "PReLU": "prelu",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "SELU": "selu",
    "CELU": "celu",
    "GELU": "gelu",
    "Silu": "silu",
    "SiLU": "silu",
    "Swish": "silu",
    "Mish": "mish",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Hardtanh": "hardtanh",
    "Hardswish": "hardswish",
    "Hardsigmoid": "hardsigmoid",
    "LogSigmoid": "log_sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Identity": "identity",
    "Flatten": "flatten",
    "Dropout": "dropout",
    "Dropout2D": "dropout2d",
    "Dropout3D": "dropout3d",
    "AlphaDropout": "alpha_dropout",
    **{f"MaxPool{d}D": f"max_pool{d}d" for d in (1, 2, 3)},
    **{f"AvgPool{d}D": f"avg_pool{d}d" for d in (1, 2, 3)},
    **{f"AdaptiveAvgPool{d}D": f"adaptive_avg_pool{d}d" for d in (1, 2, 3)},
    **{f"AdaptiveMaxPool{d}D": f"adaptive_max_pool{d}d" for d in (1, 2, 3)},
    "MultiHeadAttention": "multihead_attention",
    "Transformer": "transformer",
    "TransformerEncoder": "transformer_encoder",
    "TransformerEncoderLayer": "transformer_encoder_layer",
    "TransformerDecoder": "transformer_decoder",
    "TransformerDecoderLayer": "transformer_decoder_layer",
    "LSTM": "lstm",
    "GRU": "gru",
    "SimpleRNN": "rnn",
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
    "SimpleRNNCell": "rnn_cell",
    "Upsample": "upsample",
    "UpsamplingBilinear2D": "upsample",
    "UpsamplingNearest2D": "upsample",
    "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle",
    **{f"Pad{d}D": "pad" for d in (1, 2, 3)},
    **{f"ZeroPad{d}D": "pad" for d in (1, 2, 3)},
    "Fold": "fold",
    "Unfold": "unfold",
    "Sequential": "sequential",
    "LayerList": "module_list",
    "LayerDict": "module_dict",
    "CosineSimilarity": "cosine_similarity",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "CrossEntropyLoss": "cross_entropy_loss",
    "NLLLoss": "nll_loss",
    "BCELoss": "bce_loss",
    "BCEWithLogitsLoss": "bce_with_logits_loss",
    "KLDivLoss": "kl_div_loss",
}

#: Paddle's own names of parameters -> roles; a name that is not here is its own role.
_ROLES = {"_mean": "running_mean", "_variance": "running_var", "scale": "weight", "_weight": "weight"}

#: Paddle's attribute -> the neutral name. Private attributes that are not here are nobody's business.
_NEUTRAL = {
    "_epsilon": "eps",
    "epsilon": "eps",
    "_eps": "eps",
    "_in_channels": "in_channels",
    "_out_channels": "out_channels",
    "_num_features": "num_features",
    "_num_channels": "num_channels",
    "_num_groups": "num_groups",
    "_normalized_shape": "normalized_shape",
    "_kernel_size": "kernel_size",
    "ksize": "kernel_size",
    "kernel_sizes": "kernel_size",
    "_stride": "stride",
    "strides": "stride",
    "_padding": "padding",
    "paddings": "padding",
    "_padding_mode": "padding_mode",
    "_dilation": "dilation",
    "dilations": "dilation",
    "_groups": "groups",
    "_data_format": "data_format",
    "_data_layout": "data_format",
    "_reduction": "reduction",
    "_ignore_index": "ignore_index",
    "_use_global_stats": "use_global_stats",
    "_num_embeddings": "num_embeddings",
    "_embedding_dim": "embedding_dim",
    "_padding_idx": "padding_idx",
    "_max_norm": "max_norm",
    "_norm_type": "norm_type",
    "_scale_grad_by_freq": "scale_grad_by_freq",
    "_sparse": "sparse",
    "_in1_features": "in1_features",
    "_in2_features": "in2_features",
    "_out_features": "out_features",
    "_num_parameters": "num_parameters",
    "_init": "init",
    "_negative_slope": "negative_slope",
    "_alpha": "alpha",
    "_beta": "beta",
    "_scale": "scale",
    "_threshold": "threshold",
    "_min": "min_val",
    "_max": "max_val",
    "_axis": "dim",
    "axis": "dim",
    "start_axis": "start_dim",
    "stop_axis": "end_dim",
    "_mode": "mode",
    "_output_size": "output_size",
    "output_sizes": "output_size",
    "_upscale_factor": "upscale_factor",
    "_downscale_factor": "downscale_factor",
    "divisor": "divisor_override",
    "return_mask": "return_indices",
    "normalize_before": "norm_first",
}

#: Public functions and methods whose calls are bookkeeping, not mathematics: what they call is not told either.
_MUTED = frozenset(
    """value item tolist numpy dim ndimension rank shape numel is_tensor is_empty is_complex is_floating_point
    is_integer is_grad_enabled allclose equal_all requires_grad_ get_device set_printoptions save load async_save
    seed manual_seed clear_grad gradient register_hook check_shape broadcast_shape broadcast_shapes iinfo finfo
    in_dynamic_mode create_parameter create_tensor to_dlpack from_dlpack get_default_dtype set_default_dtype
    get_rng_state set_rng_state get_cuda_rng_state set_cuda_rng_state __len__ __bool__ __nonzero__ __int__ __long__
    __float__ __index__ __complex__ __str__ __repr__ __format__ __array__ __deepcopy__ __reduce_ex__ __hash__
    __dlpack__ _md5sum""".split()
)

#: Those that may call the user's code or the autograd engine: their inside is watched as if they were not there.
_SKIPPED = frozenset(
    """backward grad apply apply_ summary flops batch autocast set_value set_ original_init new_init enable_static
    disable_static use_compat_guard enable_compat disable_compat set_flags get_flags disable_signal_handler""".split()
)

#: Where public functions live, in the order in which a name is chosen for one that has several.
_FUNCTIONAL = "paddle.nn.functional"
_NAMESPACES = (
    "paddle",
    _FUNCTIONAL,
    "paddle.linalg",
    "paddle.fft",
    "paddle.signal",
    "paddle.sparse",
    "paddle.sparse.nn.functional",
    "paddle.geometric",
    "paddle.vision.ops",
    "paddle.audio.functional",
    "paddle.incubate.nn.functional",
    "paddle.incubate",
    "paddle.compat.nn.functional",
    "paddle.compat",
)

#: Operators -> public names, as torch has them: a reflected operator that commutes is the operator itself.
_OPERATORS = {
    **{f"__{n}__": n for n in ("add", "sub", "mul", "matmul", "gt", "ge", "lt", "le", "eq", "ne", "neg", "abs", "pow")},
    **{"__radd__": "add", "__rmul__": "mul", "__truediv__": "div", "__div__": "div", "__mod__": "remainder"},
    **{f"__{n}__": f"__{n}__" for n in ("rsub", "rdiv", "rtruediv", "floordiv", "rfloordiv", "rpow", "rmod")},
    **{f"__{n}__": f"__{n}__" for n in ("getitem", "setitem", "and", "rand", "or", "ror", "xor", "rxor", "invert")},
    **{f"__{n}__": f"__{n}__" for n in ("rmatmul", "lshift", "rshift", "rlshift", "rrshift", "pos")},
}

#: Methods of the Tensor type that are neither Python functions nor operators, and are mathematics.
_C_METHODS = ("clone", "detach", "detach_", "copy_", "contiguous")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT8 = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2")}


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1].lower()


@functools.cache
def _device_name(place: str) -> str:
    return place.removeprefix("Place(").removesuffix(")")


class PaddleAdapter(Adapter):
    """PaddlePaddle, on any device, dynamic graph."""

    name = "paddle"
    packages = ("paddle",)
    internal_paths = (_ROOT,)
    layer_paths = tuple(os.path.join(_ROOT, *parts) for parts in (("nn", "layer", ""), ("incubate", "nn", "layer", "")))
    ignored_paths = (os.path.join(_ROOT, "optimizer") + os.sep, os.path.join(_ROOT, "io") + os.sep)

    # -- what things are -------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, str]:
        return {"paddle": str(paddle.__version__), "numpy": np.__version__}

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, nn.Layer)

    def is_tensor(self, obj: object) -> bool:
        return isinstance(obj, _Tensor)

    def unstored_names(self, model: Any) -> frozenset[str]:
        return frozenset(
            f"{path}.{name}" if path else name
            for path, module in _walk(model)
            for name in module._non_persistable_buffer_names_set
        )

    def modules(self, model: Any) -> list[tuple[ModuleInfo, Any]]:
        paths: dict[int, list[str]] = {}
        objects: dict[int, Any] = {}
        for path, module in _walk(model):
            paths.setdefault(id(module), []).append(path)
            objects[id(module)] = module
        first_place: dict[int, str] = {}
        found: list[tuple[ModuleInfo, Any]] = []
        for key, module in objects.items():
            path, *aliases = paths[key]
            prefix = f"{path}." if path else ""
            cls = type(module)
            kind = next((_KINDS[c.__name__] for c in cls.__mro__ if _is_paddle(c) and c.__name__ in _KINDS), None)
            params = []
            for name, tensor in self.state(module).items():
                role = _ROLES.get(name, name) if kind else name
                # Paddle keeps running statistics among the parameters
                buffer = name in module._buffers or (kind is not None and role.startswith("running_"))
                place = first_place.setdefault(id(tensor), prefix + name)
                params.append(
                    ParamInfo(
                        name=name,
                        meta=self.meta(tensor),
                        role=role,
                        trainable=not buffer and not tensor.stop_gradient,
                        buffer=buffer,
                        tied_to=None if place == prefix + name else place,
                        # [in, out] here; the cells of recurrent layers hold [out, in] as everybody does
                        axes=(1, 0) if kind == "linear" and role == "weight" else None,
                    )
                )
            info = ModuleInfo(
                path=path,
                type=f"{cls.__module__}.{cls.__qualname__}",
                kind=kind,
                builtin=_is_paddle(cls),
                params=tuple(params),
                aliases=tuple(aliases),
                attributes=_attributes(module, kind) if kind else {},
            )
            found.append((info, module))
        return found

    def state(self, module: Any) -> dict[str, Any]:
        held = {**module._parameters, **module._buffers}
        return {name: tensor for name, tensor in held.items() if tensor is not None and name != _SCRATCH}

    def meta(self, tensor: Any) -> TensorMeta:
        return TensorMeta(tuple(tensor.shape), _dtype_name(tensor.dtype), _device_name(tensor._place_str))

    def requires_grad(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def version(self, tensor: Any) -> int:
        # Paddle does not count set_value, copy_, optimizers and running statistics: while watching we do
        return int(tensor._inplace_version()) + _watch.changes.get(id(tensor), 0) + _watch.steps

    # -- moving numbers --------------------------------------------------------------------------------------------

    def to_numpy(self, tensor: Any) -> Array:
        name = _dtype_name(tensor.dtype)
        if name == "bfloat16":
            return np.asarray(tensor.numpy()).view(_BFLOAT16)  # numpy() gives its bits as uint16
        if name in _FLOAT8:
            return np.asarray(tensor.numpy()).view(_FLOAT8[name])
        # numpy() copies: cheaper for small tensors only (0.6 us against 2 us), 1.5 ms for 4 MB
        if math.prod(tensor.shape) > _SMALL and tensor.place.is_cpu_place():
            with _unseen():
                try:
                    return np.from_dlpack(tensor.detach())
                except (BufferError, RuntimeError, TypeError):
                    pass  # numpy before 1.25 has no bool there
        return np.asarray(tensor.numpy())

    def from_numpy(self, array: Array, like: Any | None = None) -> Any:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        place = None if like is None else like.place
        with _unseen(), paddle.no_grad():
            if array.dtype == _BFLOAT16:
                tensor = paddle.to_tensor(array.view(np.uint16), place=place)  # what Paddle takes uint16 for
            elif array.dtype == np.uint16:
                tensor = paddle.to_tensor(array.astype(np.int32), place=place).astype("uint16")
            elif array.dtype in _FLOAT8.values():
                tensor = paddle.to_tensor(array.astype(np.float32), place=place).astype(array.dtype.name)
            else:
                tensor = paddle.to_tensor(array, place=place)
            return tensor if like is None or tensor.dtype == like.dtype else tensor.astype(like.dtype)

    def assign(self, tensor: Any, array: Array) -> None:
        if tuple(tensor.shape) != np.shape(array):
            raise WeightError(
                f"cannot assign an array of shape {np.shape(array)} to a tensor of shape {tuple(tensor.shape)}",
                hint="transpose or reshape it first",
            )
        with _unseen(), paddle.no_grad():
            # writes into the memory that is there, which LSTM and GRU share with their flat weight
            source = self.from_numpy(array, like=tensor)
            place = tensor.place
            where = core.CPUPlace() if place.is_cpu_place() else core.CUDAPlace(place.gpu_device_id())
            tensor.get_tensor().set(np.asarray(source.numpy()), where)
            _watch.changed(tensor)

    def gradient(self, parameter: Any) -> Any | None:
        return parameter.grad

    # -- watching --------------------------------------------------------------------------------------------------

    @contextmanager
    def observe(self, model: Any, sink: Sink, level: Level) -> Iterator[None]:
        watched = _Watched({id(module): module for _, module in _walk(model)}, sink)
        if not _watch.models:
            _watch.changes.clear()
        with _patches.applied(ops=level is Level.OP):
            _watch.models = (*_watch.models, watched)
            if level is Level.OP:
                _watch.ops = (*_watch.ops, watched)
            try:
                yield
            finally:
                _watch.models = tuple(w for w in _watch.models if w is not watched)
                _watch.ops = tuple(w for w in _watch.ops if w is not watched)

    def watch_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Callable[[], None] | None:
        if tensor.stop_gradient:
            return None

        # Paddle runs the hooks of a tensor once per pass, on the sum over all its uses, before it is stored
        def hook(gradient: Any) -> None:
            if gradient is not None:  # it is for outputs of a kernel that nothing used
                with _unseen():
                    callback(gradient)

        helper = tensor.register_hook(hook)

        def stop() -> None:
            helper.remove()

        return stop

    def in_backward(self) -> bool:
        return _watch.backward > 0

    def told(self) -> Callable[..., Any] | None:
        function: Callable[..., Any] | None = _watch.told
        return function

    def function(self, name: str) -> Callable[..., Any] | None:
        place, _, last = name.rpartition(".")
        if place == "paddle.Tensor":
            if last in ("T", "mT"):
                return vars(_Tensor)[last].fget  # type: ignore[no-any-return]
            method: Callable[..., Any] | None = getattr(_Tensor, last, None)
            operator = next(
                (getattr(_Tensor, o) for o, n in _OPERATORS.items() if n == last and hasattr(_Tensor, o)), None
            )
            return _either(operator, method) if operator is not None else method
        if place not in (*_NAMESPACES, "paddle._C_ops", "paddle._legacy_C_ops"):
            return None  # a kernel told under the name of a private function around it
        found = getattr(sys.modules.get(place), last, None)
        if place == _FUNCTIONAL and last in ("conv1d", "conv2d", "conv3d"):
            return _either_convolution(found)
        return found if callable(found) else None

    # -- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Callable[[Any], Any] | None,
        backward: bool,
    ) -> tuple[Any, Any]:
        if not backward:
            with paddle.no_grad():
                output = model(*args, **kwargs)
                return output, loss(output) if loss is not None else None
        inputs = self._inputs_to_protect(model, (args, kwargs))
        # Paddle empties a gradient's own tensor when it is taken away, so values are put back, not objects
        with _unseen():
            kept = [(t, None if t.grad is None else t.grad.clone()) for t in (*model.parameters(), *inputs)]
        try:
            for tensor in inputs:
                tensor.stop_gradient = False
            output = model(*args, **kwargs)
            value = (loss or self.default_loss)(output)
            if isinstance(value, _Tensor) and not value.stop_gradient:
                value.backward()
            return output, value
        finally:
            with _unseen():
                for tensor, gradient in kept:
                    if gradient is None:
                        tensor.grad = None
                    elif tensor.grad is not None:
                        tensor.grad.copy_(gradient, True)
            for tensor in inputs:
                tensor.stop_gradient = True

    def learn(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Any] | None
    ) -> Learned:
        inputs = self._inputs_to_protect(model, (args, kwargs))
        weights = model.parameters()
        self.clear_gradients([*weights, *inputs])
        try:
            for tensor in inputs:
                tensor.stop_gradient = False
            output = model(*args, **kwargs)
            value = (loss or self.default_loss)(output)
            if isinstance(value, _Tensor) and not value.stop_gradient:
                value.backward()
        finally:
            self.clear_gradients(inputs)
            for tensor in inputs:
                tensor.stop_gradient = True
        return Learned(output, value, tuple((p, p.grad) for p in weights if not p.stop_gradient))

    def is_optimizer(self, obj: object) -> bool:
        return isinstance(obj, paddle.optimizer.Optimizer)

    def optimized(self, optimizer: Any) -> list[Any]:
        held = optimizer._parameter_list or []
        return [p for g in held for p in g["params"]] if held and isinstance(held[0], dict) else list(held)

    def update(self, optimizer: Any, learned: Learned) -> None:
        optimizer.step()

    def rules(self, optimizer: Any, gradients: Sequence[Any] | None = None) -> list[Told]:
        with _unseen():
            return optimizing.told(optimizer)

    @contextmanager
    def watching_updates(self, optimizer: Any, seen: Callable[[Sequence[Any] | None], None]) -> Iterator[None]:
        own = vars(optimizer)
        before = {name: own[name] for name in ("step", "minimize") if name in own}

        def telling(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                seen(None)
                return method(*args, **kwargs)

            return call

        for name in ("step", "minimize"):
            own[name] = telling(getattr(optimizer, name))
        try:
            yield
        finally:
            for name in ("step", "minimize"):
                own.pop(name, None)
            own.update(before)

    def clear_gradients(self, parameters: Sequence[Any]) -> None:
        with _unseen():
            for p in parameters:
                p.clear_gradient(False)  # not set to zero: gone

    def pull_back(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        gradients: Sequence[Any | None],
        fixed: Sequence[Any] = (),
    ) -> PulledBack:
        given = [t for _, t in self.leaves((tuple(args), dict(kwargs)))]
        constant = {id(t) for t in fixed}
        leaves: dict[int, Any] = {}
        passed: dict[int, Any] = {}

        def own(value: Any) -> Any:
            if not isinstance(value, _Tensor):
                return rebuilt(value, own)
            if id(value) not in passed:
                copy = value.detach().clone()
                floating = "float" in _dtype_name(value.dtype) or "complex" in _dtype_name(value.dtype)
                if floating and id(value) not in constant:
                    copy.stop_gradient = False
                    leaves[id(value)] = copy
                    copy = copy.clone()  # a leaf cannot be changed in place, a copy of one can
                passed[id(value)] = copy
            return passed[id(value)]

        weights = self.trainable(call)
        with paddle.enable_grad(), _recurrent_layers_training(call):
            with _unseen():
                mine, named = own(tuple(args)), own(dict(kwargs))
            output = call(*mine, **named)
            outputs = [t for _, t in self.leaves(output)]
            with _unseen():
                reached = [
                    (t, g.astype(t.dtype))
                    for t, g in zip(outputs, gradients, strict=True)
                    if g is not None and not t.stop_gradient
                ]
                wanted = [*leaves.values(), *weights.values()]
                found: Sequence[Any] = [None] * len(wanted)
                if reached and wanted:
                    found = paddle.grad([t for t, _ in reached], wanted, [g for _, g in reached], allow_unused=True)
                of_inputs = dict(zip(leaves, found, strict=False))
                return PulledBack(
                    tuple(t.detach() for t in outputs),
                    tuple(of_inputs.get(id(t)) for t in given),
                    dict(zip(weights, found[len(leaves) :], strict=True)),
                )

    def widen(self, tensor: Any) -> Callable[[], None] | None:
        wide = _WIDE.get(_dtype_name(tensor.dtype))
        if wide is None:
            return None
        with _unseen(), paddle.no_grad():
            own = tensor.detach()  # another tensor of the same memory
            stored = tensor.grad
            gradient = None if stored is None else stored.detach()
            tensor.data = own.astype(wide)

        def undo() -> None:
            with _unseen(), paddle.no_grad():
                tensor.data = own
                stored = tensor.grad
                if gradient is not None and stored is not None and stored.dtype != gradient.dtype:
                    stored.data = gradient

        return undo

    @contextmanager
    def computing_in_float64(self) -> Iterator[None]:
        default = paddle.get_default_dtype()
        kernels = paddle._C_ops  # every conversion reaches its kernel through this module
        cast = kernels.cast

        def widening(x: Any, dtype: Any) -> Any:
            return cast(x, _WIDE_DTYPES.get(_dtype_name(dtype), dtype))

        paddle.set_default_dtype("float64")
        kernels.cast = widening
        try:
            yield
        finally:
            kernels.cast = cast
            paddle.set_default_dtype(default)

    def parts(self, module: Any) -> list[Any]:
        return list({id(part): part for _, part in _walk(module)}.values())

    def alter(self, module: Any, kind: str, settings: Mapping[str, Any]) -> bool:
        with _unseen():
            return altering.alter(module, kind, settings)

    def _inputs_to_protect(self, model: Any, given: Any) -> list[Any]:
        """Inputs that must require a gradient, or Paddle 3.3 dies in the backward pass of the model's first layer.

        The kernels of PReLU (a segmentation fault) and InstanceNorm (ValueError) insist on an input gradient.
        """
        fragile = any(
            isinstance(m, (nn.PReLU, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)) for _, m in _walk(model)
        )
        if not fragile:
            return []
        found = {id(t): t for _, t in self.leaves(given) if t.stop_gradient and "float" in _dtype_name(t.dtype)}
        return list(found.values())

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
        model.eval()
        try:
            yield
        finally:
            for layer, training in modes:
                layer.training = training

    @contextmanager
    def without_dropout(self, model: Any) -> Iterator[None]:
        recurrent = [m for m in self.parts(model) if isinstance(m, nn.layer.rnn.RNNBase)]  # whose kernel drops itself
        before = [m.dropout for m in recurrent]
        group = _Group()
        for function in _dropping_functions():
            group.add_function(function, function.__name__, _keep_all, who="whole")
        group.acquire()
        _watch.whole += 1
        try:
            for module in recurrent:
                module.dropout = 0.0
            yield
        finally:
            for module, dropout in zip(recurrent, before, strict=True):
                module.dropout = dropout
            _watch.whole -= 1
            group.release()

    def mean(self, tensor: Any) -> Any:
        # the half precisions have no mean kernel on every device
        return paddle.mean(tensor.astype("float32") if _dtype_name(tensor.dtype) in _HALVES else tensor)

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def random_state(self) -> Any:
        return _RandomState((core.default_cpu_generator().get_state(), *paddle.get_rng_state()))

    def restore(self, random_state: Any) -> None:
        cpu, *current = random_state.states
        core.default_cpu_generator().set_state(cpu)
        paddle.set_rng_state(current)


class _RandomState:
    """The states of all generators: objects to put back, compared by what they print."""

    def __init__(self, states: tuple[Any, ...]) -> None:
        self.states = states
        # the text holds the engine's whole state, and the address of an object
        self._text = tuple(" ".join(w for w in str(s).split() if not w.startswith("0x")) for s in states)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RandomState) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


#: Lower precisions, and what takes their place where everything is computed in float64.
_WIDE = {**dict.fromkeys(("float32", "float16", "bfloat16"), "float64"), "complex64": "complex128"}
_WIDE_DTYPES = {name: getattr(paddle, wide) for name, wide in _WIDE.items()}


@contextmanager
def _recurrent_layers_training(call: Any) -> Iterator[None]:
    """In evaluation mode their kernel keeps nothing for a backward pass; without dropout training mode is the same."""
    parts = [part for _, part in _walk(call)] if isinstance(call, nn.Layer) else []
    still = {
        id(part): part for part in parts if isinstance(part, _Recurrent) and not part.training and not part.dropout
    }
    for part in still.values():
        part.training = True
    try:
        yield
    finally:
        for part in still.values():
            part.training = False


def _either(operator: Any, method: Any) -> Callable[..., Any]:
    """An operator, which takes numbers too, and the method of its name, which takes more arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args) if method is None or (len(args) <= 2 and not kwargs) else method(*args, **kwargs)

    return call


def _either_convolution(public: Any) -> Callable[..., Any]:
    """A public convolution, or the private function that layers call, whichever has these arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        private = "op_type" in kwargs or "channel_dim" in kwargs
        return (nn.functional.conv._conv_nd if private else public)(*args, **kwargs)

    return call


#: Elements up to which a copy costs less than sharing memory.
_SMALL = 4096
_HALVES = frozenset({"float16", "bfloat16", *_FLOAT8})
#: Scratch space of recurrent layers, not state.
_SCRATCH = "_dropout_state"


def _is_paddle(cls: type) -> bool:
    return cls.__module__.split(".", 1)[0] == "paddle"


def _walk(module: Any, path: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every path of every module, root first, in definition order."""
    yield path, module
    above = (*above, id(module))
    for name, child in module._sub_layers.items():
        if child is not None and id(child) not in above:
            yield from _walk(child, f"{path}.{name}" if path else name, above)


def _attributes(module: Any, kind: str) -> dict[str, Any]:
    """The configuration of one of Paddle's layers, in torch's names and conventions."""
    raw: dict[str, Any] = dict(vars(module))
    raw.update(raw.get("_config") or {})  # TransformerEncoderLayer keeps its arguments there
    found: dict[str, Any] = {_NEUTRAL.get(name, name): value for name, value in raw.items()}
    for name in ("name", "could_use_cudnn", "state_components", "full_name", "weight_attr", "bias_attr"):
        found.pop(name, None)
    momentum = raw.get("_momentum")
    if isinstance(momentum, float):  # Paddle's is the weight of the old value, torch's that of the new one
        found["momentum"] = round(1.0 - momentum, 12)
        found["raw_momentum"] = momentum
    if "exclusive" in found:
        found["count_include_pad"] = not found.pop("exclusive")
    if "time_major" in found:
        found["batch_first"] = not found.pop("time_major")
    if "num_directions" in found:
        found["bidirectional"] = found.pop("num_directions") == 2
    if kind == "gelu":
        approximate = raw.get("_approximate")
        found["approximate"] = approximate if isinstance(approximate, str) else "tanh" if approximate else "none"
    if callable(found.get("activation")):
        found["activation"] = found["activation"].__name__.lstrip("_")
    parameters = module._parameters
    if kind == "linear" and parameters.get("weight") is not None:
        found["in_features"], found["out_features"] = (int(n) for n in parameters["weight"].shape)
    if kind in ("linear", "bilinear") or "conv" in kind:
        found["bias"] = parameters.get("bias") is not None
    elif kind.removesuffix("_cell") in ("lstm", "gru", "rnn"):
        found["bias"] = any(name.startswith("bias") and p is not None for name, p in parameters.items())
    if "pool" in kind and "stride" in found and found["stride"] is None:
        found["stride"] = found["kernel_size"]
    if "conv" in kind:  # one number stands for all axes there
        for name in ("padding", "output_padding"):
            if isinstance(found.get(name), int):
                found[name] = [found[name]] * len(found["kernel_size"])
    for hook in module._forward_pre_hooks.values():
        if type(hook).__name__ == "WeightNorm" and _is_paddle(type(hook)):
            found[f"{hook.name}_norm_dim"] = hook.dim  # which of two equal axes, no shape tells
    if kind == "layer_norm":
        found["elementwise_affine"] = parameters.get("weight") is not None
    elif "norm" in kind:
        # without affine Paddle's batch norms hold frozen ones and zeros instead of nothing
        weight = parameters.get("weight", parameters.get("scale"))
        found["affine"] = weight is not None and not (kind.startswith("batch_norm") and weight.stop_gradient)
        found["track_running_stats"] = "_mean" in parameters
    return plain_attributes(found)


# -- what is watched, and by whom ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    modules: Mapping[int, Any]
    sink: Sink


class _Watch(threading.local):
    """Who watches this thread. `ops` is empty while a public call or a sink is at work: only outermost calls count."""

    models: tuple[_Watched, ...] = ()
    ops: tuple[_Watched, ...] = ()
    backward: int = 0
    steps: int = 0
    whole: int = 0  # how many times it was said that nothing is to be dropped
    told: Any = None  # what is about to be called, while sinks are told of it

    def __init__(self) -> None:
        self.changes: dict[int, int] = {}

    def changed(self, tensor: Any) -> None:
        """Paddle does not count this change of `tensor` in its version."""
        self.changes[id(tensor)] = self.changes.get(id(tensor), 0) + 1


_watch = _Watch()


class _unseen:
    """Our own tensor work is not the user's. A class: a generator would cost a microsecond per watched call."""

    __slots__ = ("_ops",)

    def __enter__(self) -> None:
        self._ops = _watch.ops
        _watch.ops = ()

    def __exit__(self, *_: object) -> None:
        _watch.ops = self._ops


def _holds_tensor(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, _Tensor):
            return True
        if isinstance(value, (list, tuple)) and _holds_tensor(value):
            return True
        if isinstance(value, dict) and _holds_tensor(value.values()):
            return True
    return False


# What a swapped function does when someone watches: each takes (name, original, args, kwargs).


def _tell(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An outermost public call."""
    watchers = _watch.ops
    _watch.ops = ()
    try:
        if not ((args and isinstance(args[0], _Tensor)) or _holds_tensor(args) or _holds_tensor(kwargs.values())):
            # nothing is known of it until it has returned: it may not concern tensors at all
            output = original(*args, **kwargs)
            if _holds_tensor((output,)):
                for watched in watchers:
                    [token] = _enter((watched,), name, original, args, kwargs)
                    if token is not None:
                        watched.sink.leave(token, output)
            return output
        tokens = _enter(watchers, name, original, args, kwargs)
        try:
            output = original(*args, **kwargs)
        except BaseException:
            for watched, token in zip(reversed(watchers), reversed(tokens), strict=True):
                if token is not None:
                    watched.sink.fail(token)
            raise
        for watched, token in zip(reversed(watchers), reversed(tokens), strict=True):
            if token is not None:
                watched.sink.leave(token, output)
        return output
    finally:
        _watch.ops = watchers


def _enter(
    watchers: tuple[_Watched, ...], name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    _watch.told = original
    try:
        return [watched.sink.enter_op(name, args, kwargs) for watched in watchers]
    finally:
        _watch.told = None


def _tell_conv(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The private function behind the convolution layers, told as the public one."""
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    return _tell(f"{name}{len(weight.shape) - 2}d", original, args, kwargs)


def _tell_fallback(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A kernel that no public function called."""
    return _tell(_caller_name() or name, original, args, kwargs)


def _tell_module(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Layer.__call__`."""
    module = args[0]
    key = id(module)
    entered = []
    for watched in _watch.models:
        if key in watched.modules:
            with _unseen():
                token = watched.sink.enter_module(module, args[1:], kwargs)
            if token is not None:
                entered.append((watched.sink, token))
    if not entered:
        output = original(*args, **kwargs)
    else:
        try:
            output = original(*args, **kwargs)
        except BaseException:
            with _unseen():
                for sink, token in reversed(entered):
                    sink.fail(token)
            raise
    if "_mean" in module._parameters and module.training:
        _watch.changed(module._parameters["_mean"])
        _watch.changed(module._parameters["_variance"])
    if entered:
        with _unseen():
            for sink, token in reversed(entered):
                sink.leave(token, output)
    return output


def _mute(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Work that is not part of the network."""
    with _unseen():
        return original(*args, **kwargs)


def _mute_change(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The like, which changes its first argument behind the version counter's back."""
    with _unseen():
        output = original(*args, **kwargs)
    _watch.changed(args[0])
    return output


def _mute_step(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An optimizer's step: it changes it knows what behind the version counter's back."""
    with _unseen():
        output = original(*args, **kwargs)
    _watch.steps += 1
    return output


def _tell_change(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op which changes its first argument behind the version counter's back."""

    def change(*inner: Any, **named: Any) -> Any:
        output = original(*inner, **named)
        _watch.changed(args[0])
        return output

    return _tell(name, change, args, kwargs)


#: Names of arguments that say how much is dropped.
_DROPPING = frozenset("p dropout dropout_p dropout_rate attn_dropout_rate dropout1_rate dropout2_rate".split())


def _dropping_functions() -> Iterator[Any]:
    """Every function that drops elements; those that only call one of them need not be known."""
    spaces = (_FUNCTIONAL, f"{_FUNCTIONAL}.flash_attention", "paddle.incubate.nn.functional")
    for space in spaces:
        for name, value in list(vars(sys.modules[space]).items()) if space in sys.modules else ():
            named = not name.startswith("_") and any(word in name for word in ("dropout", "attention", "feedforward"))
            if named and isinstance(value, types.FunctionType) and _DROPPING & set(_parameters(value)):
                yield value


def _parameters(function: types.FunctionType) -> tuple[str, ...]:
    code: types.CodeType = inspect.unwrap(function).__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _keep_all(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that drops elements, told to drop none."""
    given = {**kwargs, **dict(zip(_parameters(original), args, strict=False))}
    known = _parameters(original)
    given.update({parameter: 0.0 for parameter in _DROPPING & set(known)})
    if "training" in known:
        given["training"] = False  # with p = 0 this is no other thing, and some functions look at nothing else
    return original(**given)


def _caller_name() -> str | None:
    """The outermost function of Paddle around a kernel call, None where a layer's method or the user called it."""
    frame = sys._getframe(2)
    found = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__:
            if not code.co_filename.startswith(_ROOT) or code.co_varnames[:1] in (("self",), ("cls",)):
                break
            found = f"{frame.f_globals.get('__name__', 'paddle')}.{code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return found


# -- what is replaced while someone watches ------------------------------------------------------------------------

_Teller = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]


@functools.cache
def _template(free: int, who: str) -> types.CodeType:
    """Code for ``def f(*args, **kwargs)`` with `free` free variables (a function insists on as many as it had).

    Constants stand where the original, the teller and the name go: that way the code needs neither globals nor a
    closure of its own, and costs one attribute lookup when nobody watches.
    """
    names = ", ".join(f"free{i}" for i in range(free))
    source = f"""
def make({names}):
    def call(*args, **kwargs):
        watch = "@watch"
        original = "@original"
        if not watch.{who}:
            return original(*args, **kwargs)
        tell = "@tell"
        name = "@name"
        return tell(name, original, args, kwargs)
        return {names or None}
    return call
"""
    scope: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), scope)
    code: types.CodeType = scope["make"](*range(free)).__code__
    return code


def _watched_code(function: types.FunctionType, name: str, tell: _Teller, who: str) -> types.CodeType:
    """Code to put into `function`, which calls what it was before, with or without telling."""
    code = function.__code__
    original = types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    original.__defaults__ = function.__defaults__
    original.__kwdefaults__ = function.__kwdefaults__
    original.__dict__.update(function.__dict__)
    constants = {"@watch": _watch, "@original": original, "@tell": tell, "@name": name}
    template = _template(len(code.co_freevars), who)
    # Paddle's file and line: tracebacks, and whoever looks for the user's line, see a function of Paddle's
    return template.replace(
        co_consts=tuple(constants.get(c, c) if isinstance(c, str) else c for c in template.co_consts),
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
    )


def _watched_builtin(original: Any, name: str, tell: _Teller) -> Any:
    """A function in place of one that is written in C."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _watch.ops:
            return original(*args, **kwargs)
        return tell(name, original, args, kwargs)

    call.__name__ = call.__qualname__ = getattr(original, "__name__", name)
    call.__doc__ = original.__doc__
    return call


def _watched_backward(original: Any) -> Any:
    """The engine, which says that it is running."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _watch.backward += 1
        try:
            return original(*args, **kwargs)
        finally:
            _watch.backward -= 1

    call.__name__ = call.__qualname__ = original.__name__
    return call


@dataclass(frozen=True, slots=True)
class _Code:
    function: types.FunctionType
    original: types.CodeType
    watched: types.CodeType


@dataclass(frozen=True, slots=True)
class _Attribute:
    owner: Any  # a module or the Tensor type
    name: str
    original: Any
    watched: Any


class _Group:
    """Functions and attributes that are replaced together, as long as anyone in any thread needs it."""

    def __init__(self) -> None:
        self.codes: dict[int, _Code] = {}
        self.attributes: dict[tuple[int, str], _Attribute] = {}
        self._undo: list[Callable[[], None]] = []
        self._users = 0

    def add_function(self, function: Any, name: str, tell: _Teller, who: str = "ops") -> None:
        """`function` will be watched under `name`, unless it is known already."""
        if not isinstance(function, types.FunctionType):
            return
        known = self.codes.get(id(function))
        if known is None or known.original is not function.__code__:
            self.codes[id(function)] = _Code(function, function.__code__, _watched_code(function, name, tell, who))

    def add_attribute(self, owner: Any, name: str, original: Any, make: Callable[[], Any]) -> None:
        key = (id(owner), name)
        known = self.attributes.get(key)
        if known is None or known.original is not original:
            self.attributes[key] = _Attribute(owner, name, original, make())

    def acquire(self) -> None:
        self._users += 1
        if self._users > 1:
            return
        for code in self.codes.values():
            code.function.__code__ = code.watched
        for attribute in self.attributes.values():
            setattr(attribute.owner, attribute.name, attribute.watched)

    def release(self) -> None:
        self._users -= 1
        if self._users > 0:
            return
        for code in self.codes.values():
            code.function.__code__ = code.original
        for attribute in self.attributes.values():
            setattr(attribute.owner, attribute.name, attribute.original)
        self.forget_users_modules()

    def forget_users_modules(self) -> None:
        """The user's modules are looked through each time anew: ours is not the reference that keeps them alive."""
        for key, attribute in list(self.attributes.items()):
            owner = attribute.owner
            if isinstance(owner, types.ModuleType) and owner.__name__.split(".", 1)[0] != "paddle":
                del self.attributes[key]

    @property
    def in_use(self) -> bool:
        return self._users > 0


class _Patches:
    """Everything that is replaced: one group for modules and backward passes, one for public calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules = _Group()
        self._ops = _Group()
        self._kernels: dict[int, str] = {}

    @contextmanager
    def applied(self, ops: bool) -> Iterator[None]:
        groups = [self._modules, self._ops] if ops else [self._modules]
        with self._lock:
            if not self._modules.in_use:
                self._find_modules()
            if ops and not self._ops.in_use:
                self._find_ops()
            for group in groups:
                group.acquire()
        try:
            yield
        finally:
            with self._lock:
                for group in reversed(groups):
                    group.release()

    def _find_modules(self) -> None:
        group = self._modules
        group.add_function(nn.Layer.__call__, "Layer.__call__", _tell_module, who="models")
        for name in ("set_value", "set_"):
            group.add_function(vars(_Tensor).get(name), name, _mute_change, who="models")
        for name in ("to", "astype", "set_state_dict", "state_dict", "create_parameter"):
            group.add_function(vars(nn.Layer).get(name), name, _mute, who="models")
        group.add_function(vars(_Parameter).get("__deepcopy__"), "__deepcopy__", _mute, who="models")
        for function in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
            group.add_function(function, function.__name__, _mute_step, who="models")
        for cls in _subclasses(paddle.optimizer.Optimizer):
            if cls.__name__ != "LBFGS":  # whose step calls the user's closure
                for name in ("step", "minimize"):
                    group.add_function(vars(cls).get(name), name, _mute_step, who="models")
        for name in ("step", "minimize", "update", "unscale_"):
            group.add_function(vars(paddle.amp.GradScaler).get(name), name, _mute_step, who="models")
        for name in ("run_backward", "run_partial_grad"):
            original = getattr(core.eager, name)
            group.add_attribute(core.eager, name, original, functools.partial(_watched_backward, original))

    def _find_ops(self) -> None:
        group = self._ops
        kernels = vars(paddle._C_ops)
        if not self._kernels:
            self._kernels = {id(v): k for k, v in kernels.items() if isinstance(v, types.BuiltinFunctionType)}
            self._find_kernels()
        taken = self._modules.codes
        # first F's own functions, some of which paddle has too: they are better known as F's
        for path, own in ((_FUNCTIONAL, _FUNCTIONAL), *((p, "") for p in _NAMESPACES)):
            module = sys.modules.get(path)
            # the smaller namespaces are full of helpers that they import
            public = None if path in _NAMESPACES[:2] else getattr(module, "__all__", None)
            for name, value in list(vars(module).items()) if module else ():
                if not (getattr(value, "__module__", None) or "").startswith(own):
                    continue
                if public is not None and name not in public:
                    continue
                if isinstance(value, types.FunctionType) and id(value) not in taken and name in _MUTED:
                    group.add_function(value, name, _mute)
                elif isinstance(value, types.FunctionType) and id(value) not in taken and _is_op(name, value):
                    if name != value.__name__.lstrip("_") and vars(module).get(value.__name__) is value:
                        continue  # an alias: its own name comes too
                    group.add_function(value, f"{path}.{name}", _tell)
        group.add_function(nn.functional.conv._conv_nd, "paddle.nn.functional.conv", _tell_conv)
        for name, value in list(vars(_Tensor).items()):
            if isinstance(value, property) and name in ("T", "mT"):
                group.add_function(value.fget, f"paddle.Tensor.{name}", _tell)
            elif isinstance(value, types.FunctionType):
                if name in _MUTED:
                    group.add_function(value, name, _mute)
                if id(value) in taken or name in _SKIPPED or (name.startswith("_") and name not in _OPERATORS):
                    continue
                group.add_function(value, f"paddle.Tensor.{_OPERATORS.get(name, name)}", _tell)
            elif isinstance(value, types.MethodDescriptorType) and (name in _OPERATORS or name in _C_METHODS):
                tell = _tell_change if name == "copy_" else _tell
                public = f"paddle.Tensor.{_OPERATORS.get(name, name)}"
                group.add_attribute(_Tensor, name, value, functools.partial(_watched_builtin, value, public, tell))
        self._find_kernels_held_by_users()

    def _find_kernels(self) -> None:
        """C functions, wherever Paddle keeps them: once per process."""
        for name, value in vars(paddle._legacy_C_ops).items():
            if isinstance(value, types.BuiltinFunctionType):
                self._add_kernel(paddle._legacy_C_ops, name, value, f"paddle._legacy_C_ops.{name}")
        for path, module in list(sys.modules.items()):
            if path.split(".", 1)[0] != "paddle" or "libpaddle" in path or path == "paddle._pir_ops":
                continue
            for name, value in list(vars(module).items()):
                kernel = self._kernels.get(id(value))
                if kernel is not None:
                    self._add_kernel(module, name, value, f"paddle._C_ops.{kernel}")

    def _find_kernels_held_by_users(self) -> None:
        for path, module in list(sys.modules.items()):
            if path.split(".", 1)[0] in _NOT_THE_USERS or not isinstance(module, types.ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if isinstance(value, types.BuiltinFunctionType) and id(value) in self._kernels:
                    self._add_kernel(module, name, value, f"paddle._C_ops.{self._kernels[id(value)]}")

    def _add_kernel(self, module: Any, name: str, kernel: Any, fallback: str) -> None:
        own = kernel.__name__
        if module is paddle._C_ops or module is paddle._legacy_C_ops:
            make = functools.partial(_watched_builtin, kernel, fallback, _tell_fallback)
        else:
            home = next((p for p in _NAMESPACES[:3] if hasattr(sys.modules.get(p), own)), None)
            make = functools.partial(_watched_builtin, kernel, f"{home}.{own}" if home else fallback, _tell)
        self._ops.add_attribute(module, name, kernel, make)


#: Packages that hold no reference of the user's to a C function of Paddle's.
_NOT_THE_USERS = frozenset({*sys.stdlib_module_names, "paddle", "torch", "numpy", "scipy", "mindspore", "twinscope"})


def _is_op(name: str, function: types.FunctionType) -> bool:
    """Whether a public name of a namespace is an op; a name that was imported from elsewhere is not."""
    return not (name.startswith(("_", "monkey_patch", "is_compiled", "get_", "set_"))) and (
        name not in _SKIPPED and function.__module__.split(".", 1)[0] == "paddle"
    )


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    child: type
    for child in cls.__subclasses__():
        yield from _subclasses(child)


_patches = _Patches()
