"""PyTorch.

Modules are watched by hooks (with keyword arguments, told about failures by the enclosing call), public API calls by a
`TorchFunctionMode`, which sees functions, Tensor methods and operators however they were imported, outermost only, and
patches nothing. Gradients are watched by tensor hooks that return None, so the graph stays the user's own.

The mode is off while the autograd engine runs, so under ``checkpoint(..., use_reentrant=True)``, which runs the region
without gradients first, modules of the region get their gradients from the recomputation, ops do not.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from ..errors import FrameworkError
from ..metrics import array_stats
from ..records import Level, ModuleInfo, ParamInfo, Stats, TensorMeta
from .altering import torch as altering
from .base import Adapter, Array, Learned, PulledBack, Sink, plain_attributes, rebuilt
from .optimizing import Told
from .optimizing import torch as optimizing

_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

#: Class name -> neutral kind, looked up along the MRO, so that a user's subclass of nn.Linear is still "linear".
_KINDS: dict[str, str] = {
    "Linear": "linear",
    "NonDynamicallyQuantizableLinear": "linear",
    "Bilinear": "bilinear",
    **{f"Conv{d}d": f"conv{d}d" for d in (1, 2, 3)},
    **{f"ConvTranspose{d}d": f"conv_transpose{d}d" for d in (1, 2, 3)},
    **{f"BatchNorm{d}d": f"batch_norm{d}d" for d in (1, 2, 3)},
    "SyncBatchNorm": "sync_batch_norm",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    **{f"InstanceNorm{d}d": f"instance_norm{d}d" for d in (1, 2, 3)},
    "RMSNorm": "rms_norm",
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
    "SiLU": "silu",
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
    **{f"Dropout{d}d": f"dropout{d}d" for d in (1, 2, 3)},
    "AlphaDropout": "alpha_dropout",
    **{f"MaxPool{d}d": f"max_pool{d}d" for d in (1, 2, 3)},
    **{f"AvgPool{d}d": f"avg_pool{d}d" for d in (1, 2, 3)},
    **{f"AdaptiveAvgPool{d}d": f"adaptive_avg_pool{d}d" for d in (1, 2, 3)},
    **{f"AdaptiveMaxPool{d}d": f"adaptive_max_pool{d}d" for d in (1, 2, 3)},
    "MultiheadAttention": "multihead_attention",
    "Transformer": "transformer",
    "TransformerEncoder": "transformer_encoder",
    "TransformerEncoderLayer": "transformer_encoder_layer",
    "TransformerDecoder": "transformer_decoder",
    "TransformerDecoderLayer": "transformer_decoder_layer",
    "LSTM": "lstm",
    "GRU": "gru",
    "RNN": "rnn",
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
    "RNNCell": "rnn_cell",
    "Upsample": "upsample",
    "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle",
    **{f"{mode}Pad{d}d": "pad" for mode in ("Constant", "Zero", "Reflection", "Replication") for d in (1, 2, 3)},
    "Fold": "fold",
    "Unfold": "unfold",
    "Sequential": "sequential",
    "ModuleList": "module_list",
    "ModuleDict": "module_dict",
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

#: Attribute reads that compute a tensor; every other attribute read is not an op.
_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})

#: Calls that are bookkeeping, not mathematics.
_SKIPPED = frozenset(
    """size dim ndimension numel nelement stride storage_offset data_ptr is_contiguous is_floating_point is_complex
    is_signed item tolist numpy element_size get_device register_hook register_post_accumulate_grad_hook retain_grad
    requires_grad_ backward __len__ __bool__ __int__ __float__ __index__ __repr__ __format__ __hash__ __array__
    __contains__ __iter__ __setstate__ __reduce_ex__ __deepcopy__ __dlpack__ is_same_size set_ _is_view storage
    untyped_storage is_shared share_memory_ is_nonzero allclose equal is_tensor is_storage result_type can_cast
    get_default_dtype broadcast_shapes is_inference is_conj is_neg is_pinned type_as_ has_names names
    __cuda_array_interface__ _assert_async""".split()
)

_FLOAT8 = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name))
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
}

_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}

#: Our own tensor work must not be seen by the mode that watches the user's.
_CALL = torch._C.DisableTorchFunction


class TorchAdapter(Adapter):
    """PyTorch, on any device, eager mode."""

    name = "torch"
    packages = ("torch",)
    internal_paths = (_ROOT,)
    layer_paths = (os.path.join(_ROOT, "nn", "modules") + os.sep,)
    ignored_paths = (os.path.join(_ROOT, "optim") + os.sep, os.path.join(_ROOT, "utils", "data") + os.sep)

    def __init__(self) -> None:
        # most tensors of a network share a few shapes
        self._metas: dict[Any, TensorMeta] = {}
        self._looks = itertools.count(-1, -1)

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "numpy": np.__version__}

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, nn.Module)

    def is_tensor(self, obj: object) -> bool:
        return isinstance(obj, torch.Tensor)

    def unstored_names(self, model: Any) -> frozenset[str]:
        return frozenset(
            f"{path}.{name}" if path else name
            for path, module in model.named_modules(remove_duplicate=False)
            for name in module._non_persistent_buffers_set
        )

    def modules(self, model: Any) -> list[tuple[ModuleInfo, Any]]:
        for path, module in model.named_modules():
            if type(module).__name__ == "OptimizedModule" or isinstance(module, torch.jit.ScriptModule):
                raise FrameworkError(
                    f"{path or 'the model'} is compiled ({type(module).__name__}): its calls cannot be watched",
                    hint="hand in the model as it was before torch.compile or torch.jit",
                )
        paths: dict[int, list[str]] = {}
        objects: dict[int, nn.Module] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(id(module), []).append(path)
            objects[id(module)] = module
        first_place: dict[int, str] = {}
        found: list[tuple[ModuleInfo, Any]] = []
        for key, module in objects.items():
            path, *aliases = paths[key]
            prefix = f"{path}." if path else ""
            params = []
            held = [(name, p, False) for name, p in module._parameters.items() if p is not None]
            held += [(name, b, True) for name, b in module._buffers.items() if b is not None]
            for name, tensor, buffer in held:
                place = first_place.setdefault(id(tensor), prefix + name)
                params.append(
                    ParamInfo(
                        name=name,
                        meta=self.meta(tensor),
                        role=name,
                        trainable=not buffer and tensor.requires_grad,
                        buffer=buffer,
                        tied_to=None if place == prefix + name else place,
                    )
                )
            cls = type(module)
            kind = next((_KINDS[c.__name__] for c in cls.__mro__ if _is_torch(c) and c.__name__ in _KINDS), None)
            info = ModuleInfo(
                path=path,
                type=f"{cls.__module__}.{cls.__qualname__}",
                kind=kind,
                builtin=_is_torch(cls),
                params=tuple(params),
                aliases=tuple(aliases),
                attributes=_attributes(module) if kind else {},
            )
            found.append((info, module))
        return found

    def state(self, module: Any) -> dict[str, Any]:
        held = {**module._parameters, **module._buffers}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def meta(self, tensor: Any) -> TensorMeta:
        key = (tensor.shape, tensor.dtype, tensor.device)
        known = self._metas.get(key)
        if known is None:
            made = TensorMeta(tuple(tensor.shape), _DTYPE_NAMES[tensor.dtype], str(tensor.device))
            known = self._metas[key] = made
        return known

    def requires_grad(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def version(self, tensor: Any) -> int:
        # inference-mode tensors have no version counter: each look at one may be a look at another content
        return next(self._looks) if tensor.is_inference() else int(tensor._version)

    def memory(self, tensor: Any) -> Any | None:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return None
        if not (tensor.is_contiguous() or _is_dense(tensor)):
            return None
        return tensor.data_ptr(), tensor.numel(), tensor.dtype

    def to_numpy(self, tensor: Any) -> Array:
        with _CALL():
            t = tensor.detach()
            if t.layout is not torch.strided:
                t = t.to_dense()
            if t.is_quantized:
                t = t.dequantize()
            if t.device.type != "cpu":
                t = t.cpu()
            if t.dtype is torch.bfloat16:
                return np.asarray(t.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
            if t.dtype in _FLOAT8:
                return np.asarray(t.view(torch.uint8).numpy().view(_FLOAT8[t.dtype]))
            return np.asarray(t.resolve_conj().resolve_neg().numpy())

    def from_numpy(self, array: Array, like: Any | None = None) -> Any:
        array = np.array(array, order="C")  # torch must own the memory, and refuses read-only or negative strides
        if array.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        elif array.dtype in _FLOAT8.values():
            dtype = next(t for t, n in _FLOAT8.items() if n == array.dtype)
            tensor = torch.from_numpy(array.view(np.uint8)).view(dtype)
        else:
            tensor = torch.from_numpy(array)
        return tensor if like is None else tensor.to(device=like.device, dtype=like.dtype)

    def assign(self, tensor: Any, array: Array) -> None:
        tensor.data.copy_(self.from_numpy(array))

    def gradient(self, parameter: Any) -> Any | None:
        return parameter.grad

    def measure(self, tensor: Any) -> Any:
        if tensor.device.type == "cpu":
            return array_stats(self.to_numpy(tensor))
        return device_stats(tensor)

    def collect(self, handles: Sequence[Any]) -> list[Stats]:
        pending = [h for h in handles if not isinstance(h, Stats)]
        if not pending:
            return list(handles)
        # one transfer for all of them: reading back per call would synchronise the device each time
        floats = torch.stack([f for f, _ in pending]).cpu().tolist()
        counts = torch.stack([c for _, c in pending]).cpu().tolist()
        read = iter(zip(floats, counts, strict=True))
        return [h if isinstance(h, Stats) else stats_from_device(*next(read)) for h in handles]

    @contextmanager
    def _module_hooks(self, model: Any, sink: Sink) -> Iterator[None]:
        by_thread: defaultdict[int, list[tuple[Any, Any]]] = defaultdict(list)  # hooks run in every thread

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with _CALL():
                by_thread[get_ident()].append((module, sink.enter_module(module, args, kwargs)))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            tokens = by_thread[get_ident()]
            with _CALL():
                # a call that raised left its token behind: everything above our own is a failed call
                while tokens:
                    owner, token = tokens.pop()
                    if owner is module:
                        if token is not None:
                            sink.leave(token, output)
                        return
                    if token is not None:
                        sink.fail(token)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return model._call_impl(*args, **kwargs)
            except BaseException:  # hooks are not told: whoever watches must not wait for the next call
                tokens = by_thread[get_ident()]
                with _CALL():
                    while tokens:
                        owner, token = tokens.pop()
                        if token is not None:
                            sink.fail(token)
                        if owner is model:
                            break
                raise

        handles = []
        compiled = model._compiled_call_impl is not None or "_compiled_call_impl" in vars(model)
        try:
            if not compiled:  # what every module looks for at first, and never copies or saves
                model._compiled_call_impl = guarded
            for module in {id(m): m for m in model.modules()}.values():
                # prepended and appended: what is seen is what the module gets after the user's own pre-hooks, and
                # what its caller gets after the user's own forward hooks
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(module.register_forward_hook(after, with_kwargs=True))
            yield
        finally:
            if not compiled and vars(model).get("_compiled_call_impl") is guarded:
                del model._compiled_call_impl
            for handle in handles:
                handle.remove()
            for tokens in by_thread.values():
                for _, token in reversed(tokens):
                    if token is not None:
                        sink.fail(token)

    @contextmanager
    def observe(self, model: Any, sink: Sink, level: Level) -> Iterator[None]:
        with self._module_hooks(model, sink):
            if level is Level.OP:
                with _Ops(sink):
                    yield
            else:
                yield

    def watch_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Callable[[], None] | None:
        if not tensor.requires_grad:
            return None

        with _CALL():  # while the engine calls back, the mode is off
            remove: Callable[[], None] = tensor.register_hook(callback).remove
        return remove

    def in_backward(self) -> bool:
        return bool(torch._C._current_graph_task_id() != -1)

    def told(self) -> Callable[..., Any] | None:
        function: Callable[..., Any] | None = _telling.function
        return function

    def function(self, name: str) -> Callable[..., Any] | None:
        found: Any = next((func for func, own in list(_Ops._names.items()) if own == name), None)
        if callable(found):
            return found  # type: ignore[no-any-return]
        package, *path = name.split(".")
        if package == "torch":
            found = torch
            for part in path:
                found = getattr(found, part, None)
        if path and path[-1] in _TENSOR_PROPERTIES and not callable(found):
            found = getattr(found, "__get__", None)
        return found if callable(found) else None

    def run(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Callable[[Any], Any] | None,
        backward: bool,
    ) -> tuple[Any, Any]:
        if not backward:
            with torch.no_grad():
                output = model(*args, **kwargs)
                return output, loss(output) if loss is not None else None
        kept = [(p, p.grad) for p in model.parameters()]
        try:
            for p, _ in kept:
                p.grad = None
            output = model(*args, **kwargs)
            value = (loss or self.default_loss)(output)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.backward()
            return output, value
        finally:
            for p, grad in kept:
                p.grad = grad

    def learn(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Any] | None
    ) -> Learned:
        weights = list(model.parameters())
        self.clear_gradients(weights)
        output = model(*args, **kwargs)
        value = (loss or self.default_loss)(output)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.backward()
        return Learned(output, value, tuple((p, p.grad) for p in weights if p.requires_grad))

    def is_optimizer(self, obj: object) -> bool:
        return isinstance(obj, torch.optim.Optimizer)

    def optimized(self, optimizer: Any) -> list[Any]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def update(self, optimizer: Any, learned: Learned) -> None:
        optimizer.step()

    def rules(self, optimizer: Any, gradients: Sequence[Any] | None = None) -> list[Told]:
        with _CALL():
            return optimizing.told(optimizer)

    @contextmanager
    def watching_updates(self, optimizer: Any, seen: Callable[[Sequence[Any] | None], None]) -> Iterator[None]:
        handle = optimizer.register_step_pre_hook(lambda *_: seen(None))
        try:
            yield
        finally:
            handle.remove()

    def clear_gradients(self, parameters: Sequence[Any]) -> None:
        for p in parameters:
            p.grad = None

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
        leaves = {
            id(t): t.detach().clone().requires_grad_()
            for t in given
            if (t.is_floating_point() or t.is_complex()) and id(t) not in constant
        }
        passed: dict[int, Any] = {}

        def own(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return rebuilt(value, own)
            if id(value) not in passed:  # a leaf cannot be changed in place, a copy of one can
                leaf = leaves.get(id(value))
                passed[id(value)] = value.detach().clone() if leaf is None else leaf.clone()
            return passed[id(value)]

        weights = self.trainable(call)
        with torch.inference_mode(False), torch.enable_grad():
            output = call(*own(tuple(args)), **own(dict(kwargs)))
            outputs = [t for _, t in self.leaves(output)]
            reached = [
                (t, g.to(device=t.device, dtype=t.dtype))
                for t, g in zip(outputs, gradients, strict=True)
                if g is not None and t.requires_grad
            ]
            wanted = [*leaves.values(), *weights.values()]
            found: Sequence[Any] = [None] * len(wanted)
            if reached and wanted:
                found = torch.autograd.grad([t for t, _ in reached], wanted, [g for _, g in reached], allow_unused=True)
        of_inputs = dict(zip(leaves, found, strict=False))
        return PulledBack(
            tuple(t.detach() for t in outputs),
            tuple(of_inputs.get(id(t)) for t in given),
            dict(zip(weights, found[len(leaves) :], strict=True)),
        )

    def widen(self, tensor: Any) -> Callable[[], None] | None:
        with _CALL():
            wide = _WIDE.get(tensor.dtype)
            if wide is None or nn.parameter.is_lazy(tensor):
                return None
            own, gradient = tensor.data, tensor.grad if tensor.is_leaf else None
            if gradient is not None:
                tensor.grad = None  # it must have the dtype of its tensor
            tensor.data = own.to(wide)

        def undo() -> None:
            with _CALL():
                if gradient is not None:
                    tensor.grad = None
                tensor.data = own
                if gradient is not None:
                    tensor.grad = gradient

        return undo

    @contextmanager
    def computing_in_float64(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch._C._EnableTorchFunction(), _Wide():  # a sink is called with torch functions disabled
                yield
        finally:
            torch.set_default_dtype(before)

    def parts(self, module: Any) -> list[Any]:
        return list(module.modules())

    def alter(self, module: Any, kind: str, settings: Mapping[str, Any]) -> bool:
        return altering.alter(module, kind, settings)

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    def without_dropout(self, model: Any) -> AbstractContextManager[None]:
        mode: AbstractContextManager[None] = _NoDropout()
        return mode

    def mean(self, tensor: Any) -> Any:
        return tensor.mean()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def random_state(self) -> Any:
        states = [torch.get_rng_state().numpy().tobytes()]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states += [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
        return tuple(states)

    def restore(self, random_state: Any) -> None:
        cpu, *devices = (torch.from_numpy(np.frombuffer(s, dtype=np.uint8).copy()) for s in random_state)
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)


def _attributes(module: Any) -> dict[str, Any]:
    """The configuration of one of torch's layers, whose names and conventions are the neutral ones."""
    found = plain_attributes(vars(module))
    activation = vars(module).get("activation")
    if callable(activation):  # of a transformer's layer
        found["activation"] = getattr(activation, "__name__", type(activation).__name__)
    return found


def _is_torch(cls: type) -> bool:
    return cls.__module__.split(".", 1)[0] == "torch"


def _is_dense(tensor: Any) -> bool:
    """Whether every place of the memory between a tensor's first and last element is used exactly once."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


class _Telling(threading.local):
    """What this thread is telling a sink of."""

    function: Any = None


_telling = _Telling()


class _Ops(TorchFunctionMode):  # type: ignore[misc]
    """Tells the sink of every outermost public API call."""

    _names: ClassVar[dict[Any, str | None]] = {}

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            name = self._names[func]
        except KeyError:
            name = self._names[func] = _op_name(func)
        if name is None:
            return func(*args, **kwargs)
        _telling.function = func
        try:
            with _CALL():  # a mode below this one is not told of what a sink looks at
                token = self.sink.enter_op(name, args, kwargs)
        finally:
            _telling.function = None
        if token is None:
            return func(*args, **kwargs)
        try:
            output = func(*args, **kwargs)
        except BaseException:
            with _CALL():
                self.sink.fail(token)
            raise
        with _CALL():
            self.sink.leave(token, output)
        return output


#: Lower precisions, and what takes their place where everything is computed in float64.
_WIDE = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
_NARROWING = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
    torch.Tensor.cfloat: torch.Tensor.cdouble,
}


class _Wide(TorchFunctionMode):  # type: ignore[misc]
    """Gives float64 to who asks for less."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func = _NARROWING.get(func, func)
        if func is not torch.Tensor.view:  # which reads bits, and converts nothing
            args = tuple([_WIDE.get(a, a) if type(a) is torch.dtype else a for a in args])
            if kwargs:
                kwargs = {k: _WIDE.get(a, a) if type(a) is torch.dtype else a for k, a in kwargs.items()}
        return func(*args, **(kwargs or {}))


_F = nn.functional
#: What drops elements: the probability's name, and where it stands among the arguments.
_DROPPING: dict[Any, tuple[str, int]] = {
    **dict.fromkeys(
        (
            *(_F.dropout, _F.dropout1d, _F.dropout2d, _F.dropout3d, _F.alpha_dropout, _F.feature_alpha_dropout),
            *(torch.dropout, torch.dropout_, torch.feature_dropout, torch.feature_dropout_, torch.native_dropout),
            *(torch.alpha_dropout, torch.alpha_dropout_, torch.feature_alpha_dropout, torch.feature_alpha_dropout_),
        ),
        ("p", 1),
    ),
    _F.scaled_dot_product_attention: ("dropout_p", 4),
    _F.multi_head_attention_forward: ("dropout_p", 10),
    # of padded batches and of packed ones: input, hx, weights, has_biases, layers, dropout; data, batch_sizes, hx, ...
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), ("dropout", 5)),
}


class _NoDropout(TorchFunctionMode):  # type: ignore[misc]
    """Tells everything that drops to drop nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        dropping = _DROPPING.get(func)
        if dropping is None:
            return func(*args, **(kwargs or {}))
        name, place = dropping
        if name == "dropout" and len(args) > 6 and isinstance(args[4], bool):
            place = 6  # of a packed batch
        if len(args) > place:
            return func(*args[:place], 0.0, *args[place + 1 :], **(kwargs or {}))
        return func(*args, **{**(kwargs or {}), name: 0.0})


def _op_name(func: Any) -> str | None:
    """The public name of `func`; None when it is bookkeeping."""
    name = getattr(func, "__name__", "")
    full = resolve_name(func) or f"torch.{name}"
    if name == "__get__":
        attribute = full.split(".")[-2] if full.count(".") >= 2 else ""
        return full.removesuffix(".__get__") if attribute in _TENSOR_PROPERTIES else None
    if name in _SKIPPED or name in ("__set__", "__delete__"):
        return None
    return full


def device_stats(tensor: Any) -> tuple[Any, Any]:
    """`Stats` as two small tensors on the tensor's own device: nothing is read back here.

    First min, max, sum, sum of squares in float64 where the device has it; then counts of elements, NaN and Inf, and
    the sum of bit patterns.
    """
    with _CALL(), torch.no_grad():
        t = tensor.detach()
        if t.layout is not torch.strided:
            t = t.to_dense()
        width = t.element_size()
        n = t.numel()
        wide = torch.float64 if t.device.type != "mps" else torch.float32
        if n == 0:
            nan = torch.full((4,), float("nan"), dtype=wide, device=t.device)
            return nan, torch.zeros(6, dtype=torch.int64, device=t.device)
        high = None  # of complex128 the imaginary halves are summed on their own
        if t.dtype is torch.bool:
            bits = t.view(torch.uint8).sum(dtype=torch.int64)
        elif t.is_complex():
            halves = torch.view_as_real(t.resolve_conj()).contiguous().view(torch.int64)
            bits, high = halves[..., 0].sum(), halves[..., -1].sum()
        else:
            bits = t.view(_BITS[width]).sum(dtype=torch.int64)
        # the magnitude of NaN + Inf j is Inf: it counts as NaN
        x = torch.where(t.isnan(), float("nan"), t.abs()) if t.is_complex() else t
        if x.is_floating_point():
            x = x if x.dtype in (torch.float32, torch.float64) else x.float()
            nan_count, inf_count = x.isnan().sum(), x.isinf().sum()
            finite = x.isfinite()
            least = torch.where(finite, x, float("inf")).amin().to(wide)
            most = torch.where(finite, x, float("-inf")).amax().to(wide)
            x = torch.where(finite, x, 0.0)
        else:
            nan_count = inf_count = torch.zeros((), dtype=torch.int64, device=t.device)
            least, most = (x.to(torch.uint8) if x.dtype is torch.bool else x).aminmax()
            least, most = least.to(wide), most.to(wide)
        total = x.sum(dtype=wide)
        squares = torch.linalg.vector_norm(x.to(wide) if not x.is_floating_point() else x, dtype=wide) ** 2
        count = torch.full((), n, dtype=torch.int64, device=t.device)
        width_ = torch.full((), width * 8, dtype=torch.int64, device=t.device)
        counts = [count, nan_count, inf_count, bits, bits if high is None else high, width_]
        return torch.stack([least, most, total, squares]), torch.stack(counts)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def stats_from_device(floats: list[float], counts: list[int]) -> Stats:
    """The `Stats` that `device_stats` prepared, once its two tensors are on the host."""
    low, high, total, squares = floats
    n, nan_count, inf_count, bits, more, width = counts
    fingerprint = bits % (1 << min(width, 64)) | (more % (1 << 64) << 64 if width == 128 else 0)
    m = n - nan_count - inf_count
    if m == 0:
        nan = float("nan")
        return Stats(nan, nan, nan, nan, 0.0, nan_count, inf_count, fingerprint)
    mean = total / m
    std = max(squares / m - mean * mean, 0.0) ** 0.5
    return Stats(low, high, mean, std, squares**0.5, nan_count, inf_count, fingerprint)
