"""MindSpore (2.10 and later), PyNative mode.

How calls are seen. MindSpore has no dispatch mode, Tensor operators are C++ methods, and ``from mindspore.ops import
relu`` copies a reference that patching a namespace would miss. So nothing is replaced in any namespace: while a model
is watched, the public Python functions (of mindspore.ops, mint, numpy, Tensor, every Primitive's ``__call__``, and
``Cell.__call__``) are given another ``__code__``, one that calls `_Op.call`, and get their own back afterwards. However
a function was imported, in whatever dict or partial it is kept, it is the same object and is seen. Name, file and first
line of the code stay those of the original, because the graph compiler (``@jit``, most optimizers) reads the source of
whatever it meets by them; compiled regions therefore compile as ever, and nothing inside them is told. The C++ methods
of Tensor are shadowed by attributes of the Python class `Tensor`, deleted afterwards.

Outermost: a flag per thread. It is cleared while a module of the watched model runs, so what a framework layer calls is
told; it is set while an optimizer, a compiled function or a backward pass runs (but not for recomputation).

Gradients: ``Tensor.register_hook`` gives the total gradient once per backward pass, for parameters too, before
value_and_grad hands anything out. Hooks that return None change nothing.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import FrameworkError, NoFloat64, OptionError, WeightError
from ..records import Level, ModuleInfo, ParamInfo, TensorMeta
from .base import Adapter, Array, Learned, PulledBack, Sink, plain_attributes, rebuilt
from .optimizing import Told

try:
    import mindspore as ms
    from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
    from mindspore._c_expression import TensorPy
    from mindspore.graph.api import _pynative_executor
    from mindspore.ops.composite.base import _Grad

    from .altering import mindspore as altering
    from .optimizing import mindspore as optimizing
except RuntimeError as error:  # numpy 2: the wheel does not declare that it cannot
    raise FrameworkError(f"mindspore cannot be loaded: {error}", hint="pip install 'numpy<2'") from error

_ROOT = os.path.dirname(os.path.abspath(ms.__file__)) + os.sep

#: Class name -> neutral kind, looked up along the MRO, so that a user's subclass of nn.Dense is still "linear".
_KINDS: dict[str, str] = {
    "Dense": "linear",
    "Linear": "linear",
    "BiDense": "bilinear",
    **{f"Conv{d}d": f"conv{d}d" for d in (1, 2, 3)},
    **{f"Conv{d}dTranspose": f"conv_transpose{d}d" for d in (1, 2, 3)},
    "ConvTranspose2d": "conv_transpose2d",
    **{f"BatchNorm{d}d": f"batch_norm{d}d" for d in (1, 2, 3)},
    "SyncBatchNorm": "sync_batch_norm",
    "LayerNorm": "layer_norm",
    "LayerNormExt": "layer_norm",
    "GroupNorm": "group_norm",
    **{f"InstanceNorm{d}d": f"instance_norm{d}d" for d in (1, 2, 3)},
    "RMSNorm": "rms_norm",
    "LRN": "local_response_norm",
    "Embedding": "embedding",
    "EmbeddingExt": "embedding",
    "EmbeddingLookup": "embedding",
    "PReLU": "prelu",
    "PReLUExt": "prelu",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "SeLU": "selu",
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
    "HSwish": "hardswish",
    "Hardswish": "hardswish",
    "HSigmoid": "hardsigmoid",
    "Hardsigmoid": "hardsigmoid",
    "LogSigmoid": "log_sigmoid",
    "Softmax": "softmax",
    "SoftmaxExt": "softmax",
    "LogSoftmax": "log_softmax",
    "LogSoftmaxExt": "log_softmax",
    "Identity": "identity",
    "Flatten": "flatten",
    "Dropout": "dropout",
    "DropoutExt": "dropout",
    **{f"Dropout{d}d": f"dropout{d}d" for d in (1, 2, 3)},
    "Dropout2dExt": "dropout2d",
    **{f"MaxPool{d}d": f"max_pool{d}d" for d in (1, 2, 3)},
    **{f"AvgPool{d}d": f"avg_pool{d}d" for d in (1, 2, 3)},
    **{f"AvgPool{d}dExt": f"avg_pool{d}d" for d in (1, 2, 3)},
    "MaxPool2dExt": "max_pool2d",
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
    "UpsampleExt": "upsample",
    "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle",
    "Pad": "pad",
    **{f"{mode}Pad{d}d": "pad" for mode in ("Constant", "Zero", "Reflection", "Replication") for d in (1, 2, 3)},
    "Fold": "fold",
    "Unfold": "unfold",
    "UnfoldExt": "unfold",
    "SequentialCell": "sequential",
    "CellList": "module_list",
    "CellDict": "module_dict",
    "CosineSimilarity": "cosine_similarity",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "L1LossExt": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "CrossEntropyLoss": "cross_entropy_loss",
    "NLLLoss": "nll_loss",
    "BCELoss": "bce_loss",
    "BCEWithLogitsLoss": "bce_with_logits_loss",
    "KLDivLoss": "kl_div_loss",
}

#: Own name of a built-in layer's parameter -> role (torch's names are the neutral ones).
_ROLES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
    "w": "weight",
}
_BUFFER_ROLES = frozenset({"running_mean", "running_var", "num_batches_tracked"})

#: Layers whose inner cells are an implementation detail: not modules of their own, their parameters are the layer's.
_CLOSED = frozenset({"lstm", "gru", "rnn", "batch_norm3d"})

#: Own attribute name -> neutral name, whatever the layer...
_ATTRIBUTES = {
    "epsilon": "eps",
    "group": "groups",
    "has_bias": "bias",
    "vocab_size": "num_embeddings",
    "embedding_size": "embedding_dim",
}
#: ... and for one kind.
_ATTRIBUTES_OF: dict[str, dict[str, str]] = {
    "linear": {"in_channels": "in_features", "out_channels": "out_features"},
    "leaky_relu": {"alpha": "negative_slope"},
}

#: Operators under the name of the method that they are.
_OPERATORS = {
    "__add__": "add",
    "__radd__": "add",
    "__iadd__": "add_",
    "__sub__": "sub",
    "__isub__": "sub_",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__imul__": "mul_",
    "__truediv__": "div",
    "__itruediv__": "div_",
    "__floordiv__": "floor_divide",
    "__ifloordiv__": "floor_divide_",
    "__mod__": "remainder",
    "__imod__": "remainder_",
    "__pow__": "pow",
    "__matmul__": "matmul",
    "__neg__": "neg",
    "__abs__": "abs",
    "__invert__": "bitwise_not",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__eq__": "eq",
    "__ne__": "ne",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
}
_TOLD_DUNDERS = frozenset(
    """__rsub__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __rmatmul__ __getitem__ __setitem__ __round__""".split()
).union(_OPERATORS)

#: Bookkeeping, not mathematics: of functions and Tensor methods...
_SKIPPED = frozenset(
    """asnumpy numpy item itemset tolist size dim ndimension numel nelement stride storage storage_offset data_ptr
    is_contiguous is_floating_point is_complex is_signed get_bytes set_const_arg set_cast_dtype init_data value
    register_hook remove_hook flush_from_cache from_numpy convert_bytes_to_tensor check_device_contiguous wait_pipeline
    move_to pin_memory is_pinned requires_grad_ retain_grad persistent_data is_init offload is_persistent_data
    getitem_index_info setitem_index_info const_arg cast_dtype dtype shape rank isinstance_ is_tensor tuple_to_array
    dyn_shape scalar_to_tensor print_ assert_ type untyped_storage allclose set_device_address hook_backward tensor_dump
    scalar_cast list_to_tuple get_dtype promote_types result_type can_cast""".split()
)
#: ... and of primitives.
_SKIPPED_PRIMITIVES = frozenset(
    """Shape TensorShape DynamicShape Rank Size DType IsInstance IsSubClass TupleToArray ScalarToTensor ScalarToArray
    ScalarCast Generator HookBackward CellBackwardHook Print Assert TensorDump WhileLoop ForiLoop Scan Depend Load
    UpdateState CompileOp ProxyOp MakeTuple MakeList TupleGetItem ListGetItem TensorSummary ScalarSummary
    HistogramSummary ImageSummary InsertGradientOf Morph typeof""".split()
)
#: Functions that take functions: what these do is the user's, and told.
_HIGHER_ORDER = frozenset(
    """grad value_and_grad get_grad vmap vjp jvp jet derivative custom_vjp jacfwd jacrev hvp vhp hessian jacobian cond
    while_loop fori_loop for_loop scan recompute partial apply_along_axis apply_over_axes piecewise
    vectorize cell_vjp linearize""".split()
)

#: Where public functions live, the most public first: the first namespace that has a function names it.
_NAMESPACES = (
    "mindspore.ops",
    "mindspore.mint",
    "mindspore.mint.nn.functional",
    "mindspore.mint.linalg",
    "mindspore.mint.special",
    "mindspore.numpy",
    "mindspore.numpy.fft",
    "mindspore.ops.functional",
    "mindspore.ops.functional_overload",
    "mindspore.ops.auto_generate",
)
_DEFINED_IN = ("mindspore.ops.", "mindspore.mint", "mindspore.numpy.", "mindspore.graph._check_supported")
_NOT_OPS = (
    "mindspore.ops.primitive",
    "mindspore.ops._primitive_cache",
    "mindspore.ops.op_info_register",
    "mindspore.ops.composite",
    "mindspore.ops.signature",
    "mindspore.ops._utils",
)

#: Functions and methods that change their first argument without MindSpore's own version counter noticing.
_MUTATING = frozenset(
    """assign assign_add assign_sub __setitem__ assign_value set_data scatter_update scatter_nd_update scatter_nd_add
    scatter_nd_sub scatter_nd_mul scatter_nd_div scatter_nd_max scatter_nd_min""".split()
)
#: Primitives that change only these of their arguments, when they have the attribute side_effect_mem.
_MUTATED_ARGUMENTS = {"BatchNorm": (3, 4), "InstanceNorm": (3, 4), "BatchNormWithActivation": (3, 4)}

_DTYPE_NAMES = {
    "Float8E4M3FN": "float8_e4m3fn",
    "Float8E5M2": "float8_e5m2",
}


class MindSporeAdapter(Adapter):
    """MindSpore on any device, PyNative mode."""

    name = "mindspore"
    packages = ("mindspore",)
    internal_paths = (_ROOT,)
    layer_paths = tuple(os.path.join(_ROOT, *parts) for parts in (("nn", ""), ("mint", "nn", "layer", "")))
    ignored_paths = tuple(
        os.path.join(_ROOT, *parts) + os.sep
        for parts in (("nn", "optim"), ("mint", "optim"), ("experimental", "optim"), ("dataset",))
    )

    #: what `open_tape` opened and nothing has closed
    _tape: Any = None

    def versions(self) -> dict[str, str]:
        return {"mindspore": str(ms.__version__), "numpy": np.__version__}

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, nn.Cell)

    def is_tensor(self, obj: object) -> bool:
        return isinstance(obj, Tensor)

    def modules(self, model: Any) -> list[tuple[ModuleInfo, Any]]:
        paths: dict[int, list[str]] = {}
        objects: dict[int, Any] = {}
        for path, cell in _walk(model, "", ()):
            paths.setdefault(id(cell), []).append(path)
            objects[id(cell)] = cell
        first_place: dict[int, str] = {}
        found: list[tuple[ModuleInfo, Any]] = []
        for key, cell in objects.items():
            path, *aliases = paths[key]
            prefix = f"{path}." if path else ""
            cls = type(cell)
            kind = _kind(cls)
            params = []
            for name, tensor, buffer in _held(cell):
                place = first_place.setdefault(id(tensor), prefix + name)
                role = _ROLES.get(name.rsplit(".", 1)[-1], name) if kind else name
                buffer = buffer or role in _BUFFER_ROLES
                params.append(
                    ParamInfo(
                        name=name,
                        meta=self.meta(tensor),
                        role=role,
                        trainable=not buffer and _trainable(tensor),
                        buffer=buffer,
                        tied_to=None if place == prefix + name else place,
                        # one-dimensional convolutions are two-dimensional ones of height 1 here
                        axes=(0, 1, 3) if kind in ("conv1d", "conv_transpose1d") and len(tensor.shape) == 4 else None,
                    )
                )
            info = ModuleInfo(
                path=path,
                type=f"{cls.__module__}.{cls.__qualname__}",
                kind=kind,
                builtin=_is_mindspore(cls),
                params=tuple(params),
                aliases=tuple(aliases),
                attributes=_attributes(cell, kind) if kind else {},
            )
            found.append((info, cell))
        return found

    def stored_names(self, model: Any) -> dict[str, str]:
        """A Parameter knows its name in files. It is not its path where a cell was assigned twice, or wrapped since."""
        names = {
            info.param_path(param.name): str(getattr(tensor, "name", ""))
            for info, cell in self.modules(model)
            for param, tensor in zip(info.params, self.state(cell).values(), strict=True)
            if param.tied_to is None
        }
        if len(set(names.values())) < len(names):  # ill-named: MindSpore itself would not save it
            return {}
        return {path: name for path, name in names.items() if name and name != path}

    def state(self, module: Any) -> dict[str, Any]:
        return {name: tensor for name, tensor, _ in _held(module)}

    def meta(self, tensor: Any) -> TensorMeta:
        return TensorMeta(tuple(tensor.shape), _dtype_name(tensor.dtype), _device())

    def requires_grad(self, tensor: Any) -> bool:
        """For what a graph computed, MindSpore knows. An input of the function given to value_and_grad says True even
        where no gradient with respect to it was asked for: its gradient then never arrives."""
        return bool(tensor._requires_grad) and tensor.dtype in _FLOATS and _trainable(tensor)

    def version(self, tensor: Any) -> int:
        """MindSpore's own counter misses item assignment, the assign family, BatchNorm's statistics and optimizers, so
        those are counted here while a model is watched."""
        return int(tensor._version) + _CHANGES.count(tensor)

    def to_numpy(self, tensor: Any) -> Array:
        if tensor.has_init:
            tensor = tensor.init_data()
        array = tensor.asnumpy()  # shares the memory of a contiguous CPU tensor
        if tensor.dtype == ms.bfloat16:  # MindSpore has a numpy type of its own
            array = array.view(ml_dtypes.bfloat16)
        return np.asarray(array)

    def from_numpy(self, array: Array, like: Any | None = None) -> Any:
        array = np.array(array, order="C")
        if array.dtype == ml_dtypes.bfloat16:
            tensor = Tensor(array.astype(np.float32), dtype=ms.bfloat16)
        else:
            tensor = Tensor(array)
        return tensor if like is None or like.dtype == tensor.dtype else tensor.astype(like.dtype)

    def assign(self, tensor: Any, array: Array) -> None:
        if tuple(tensor.shape) != tuple(array.shape):
            name = getattr(tensor, "name", "tensor")
            raise WeightError(
                f"cannot assign an array of shape {tuple(array.shape)} to {name} of shape {tuple(tensor.shape)}",
                hint="transform the array first (transpose, reshape), or map it to another parameter",
            )
        value = self.from_numpy(array, like=tensor)
        has_kernel = tensor.dtype != ms.bfloat16 or _device() != "cpu"
        if isinstance(tensor, Parameter) and not tensor.has_init and has_kernel:
            # a compiled optimizer goes on with the memory that it knows: any other would never be updated
            try:
                with _quiet():
                    ops.assign(tensor, value)
            except TypeError:  # no such kernel: bfloat16 on the CPU, where nothing is computed with it either
                tensor.assign_value(value)
        else:
            tensor.assign_value(value)
        _CHANGES.bump(tensor)

    def observe(self, model: Any, sink: Sink, level: Level) -> Any:
        return _observe({id(cell): cell for _, cell in _walk(model, "", ())}, sink, level)

    def watch_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Callable[[], None] | None:
        if not self.requires_grad(tensor):
            return None

        def hook(gradient: Any) -> None:
            with _quiet():
                callback(gradient)

        # Not Parameter.register_hook: that also makes every compiled function compile again.
        try:
            key = TensorPy.register_hook(tensor, hook)
        except RuntimeError:  # an item of a parameter says that it requires a gradient even where no graph is built
            return None
        return lambda: TensorPy.remove_hook(key)

    def in_backward(self) -> bool:
        watch = _THREAD.watch
        return watch is not None and watch.backwards > 0

    def told(self) -> Callable[..., Any] | None:
        return None if _THREAD.watch is None else _THREAD.watch.told

    def configuration(self, function: Any) -> Mapping[str, Any]:
        primitive = _primitive_in(function)
        return {} if primitive is None else altering.made_with(primitive)

    def configured(self, function: Any, changes: Mapping[str, Any]) -> Callable[..., Any] | None:
        primitive = _primitive_in(function)
        if primitive is None or not set(changes) <= set(altering.made_with(primitive)):
            return None
        return partial(function.func, altering.made_like(primitive, **changes))

    def function(self, name: str) -> Callable[..., Any] | None:
        """A primitive's name does not say how it was configured: there is a function only for those that cannot be."""
        place, _, last = name.rpartition(".")
        if place == "mindspore.Tensor":
            method = getattr(Tensor, last, None)
            operator = next(
                (getattr(Tensor, o) for o, n in _OPERATORS.items() if n == last and hasattr(Tensor, o)), None
            )
            return _either(operator, method) if operator is not None else method
        if place == "mindspore.Parameter":
            return getattr(Parameter, last, None)
        if place not in _NAMESPACES and not place.startswith("mindspore.ops.function."):
            return None
        found = getattr(sys.modules.get(place), last, None)
        if isinstance(found, type):
            if not issubclass(found, ops.Primitive) or len(inspect.signature(found).parameters):
                return None
            return found()  # type: ignore[no-any-return]
        return found if callable(found) else None

    def is_inplace(self, name: str) -> bool:
        """Those that MindSpore's version counter misses included; of primitives, the assigning ones."""
        last = name.rpartition(".")[2]
        return super().is_inplace(name) or last in _MUTATING or last in ("Assign", "AssignAdd", "AssignSub")

    def run(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Callable[[Any], Any] | None,
        backward: bool,
    ) -> tuple[Any, Any]:
        self._begin()
        if not backward:
            output = model(*args, **kwargs)
            return output, loss(output) if loss is not None else None
        output, value, _ = self.learn(model, args, kwargs, loss)
        return output, value

    def learn(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Any] | None
    ) -> Learned:
        self._begin()
        results: list[Any] = []

        # The output does not pass through value_and_grad, which knows nothing of dataclasses and None.
        def forward(*_: Any) -> Any:
            output = model(*args, **kwargs)
            value = (loss or self.default_loss)(output)
            results.extend((output, value))
            return value

        weights = [p for p in model.get_parameters() if p.requires_grad]
        inputs = [t for _, t in self.leaves((tuple(args), dict(kwargs))) if t.dtype in _FLOATS]
        found: Sequence[Any] = ()
        try:
            if weights:
                _, found = ms.value_and_grad(forward, None, weights)()
            elif inputs:
                ms.value_and_grad(forward, tuple(range(len(inputs))))(*inputs)
            else:
                forward()
        except BaseException:
            # MindSpore stays in the middle of building the graph: the second time, even x[0] fails in whatever follows
            _pynative_executor.clear_res()
            raise
        return Learned(results[0], results[1], tuple(zip(weights, found, strict=True)))

    def is_optimizer(self, obj: object) -> bool:
        return isinstance(obj, nn.Cell) and _is_optimizer(type(obj))

    def optimized(self, optimizer: Any) -> list[Any]:
        return list(optimizer.parameters)

    def rules(self, optimizer: Any, gradients: Sequence[Any] | None = None) -> list[Told]:
        return optimizing.told(optimizer, gradients)

    @contextmanager
    def watching_updates(self, optimizer: Any, seen: Callable[[Sequence[Any] | None], None]) -> Iterator[None]:
        handle = optimizer.register_forward_pre_hook(lambda _, inputs: seen(inputs[0]))
        try:
            yield
        finally:
            handle.remove()

    def update(self, optimizer: Any, learned: Learned) -> None:
        gradients = {id(p): g for p, g in learned.gradients}
        missing = [p.name for p in optimizer.parameters if id(p) not in gradients]
        if missing:
            raise OptionError(
                f"the optimizer updates {', '.join(missing[:3])}, for which the model has no gradient",
                hint="make the optimizer with model.trainable_params() of the very model that is handed in",
            )
        optimizer(tuple(gradients[id(p)] for p in optimizer.parameters))

    def open_tape(self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What value_and_grad does before it calls its function; what it does after it is done by `backward`.

        MindSpore builds one graph at a time: another tape, or gradients that are computed otherwise, give this one up.
        """
        self._begin()
        weights = self.trainable(model)
        inputs = () if weights else tuple(t for _, t in self.leaves((tuple(args), dict(kwargs))) if t.dtype in _FLOATS)

        def function() -> None:
            """What MindSpore believes it differentiates; what it keeps goes by the function's identity."""

        _pynative_executor.set_grad_flag(True)
        _pynative_executor.new_graph(function, *inputs)
        self._tape = tape = (function, weights, inputs)
        return tape

    def drop_tape(self, tape: Any) -> None:
        if tape is self._tape:
            self._tape = None
            _pynative_executor.clear_res()
            _pynative_executor.set_grad_flag(False)

    def _begin(self) -> None:
        """Before anything is run here: in graph mode nothing can be seen, and of graphs there is one at a time."""
        _require_pynative()
        if self._tape is not None:
            self.drop_tape(self._tape)

    def backward(self, model: Any, loss: Any, tape: Any) -> dict[str, Any]:
        if tape is not self._tape:
            raise FrameworkError(
                "what the forward pass left for this backward pass is gone: MindSpore keeps that of one model at a "
                "time, and another model was called, or gradients were computed, in between",
                hint="call backward() before anything else that computes gradients",
            )
        function, weights, inputs = tape
        try:
            _pynative_executor.end_graph(function, loss, *inputs)
            if weights:
                by_list, held = _Grad(get_by_list=True), ParameterTuple(list(weights.values()))
                found = _pynative_executor.grad(function, by_list, held, None, False)
                self._tape = None
                return dict(zip(weights, found, strict=True))
            if inputs:
                by_position = _Grad(get_by_position=True)
                _pynative_executor.grad(function, by_position, None, tuple(range(len(inputs))), False, *inputs)
            self._tape = None
            return {}
        except BaseException:
            self.drop_tape(tape)
            raise

    def pull_back(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        gradients: Sequence[Any | None],
        fixed: Sequence[Any] = (),
    ) -> PulledBack:
        """MindSpore does not say what had no part in a result: its gradient is zeros, not None."""
        self._begin()
        given = [t for _, t in self.leaves((tuple(args), dict(kwargs)))]
        constant = {id(t) for t in fixed}
        order = list(dict.fromkeys(id(t) for t in given if t.dtype in _FLOATS and id(t) not in constant))
        by_id = {id(t): t for t in given}
        weights = self.trainable(call)
        results: list[Any] = []

        def forward(*inner: Any) -> Any:
            # what an op changes in place must be no input of the function that is differentiated
            passed = {key: t * 1 for key, t in zip(order, inner, strict=True)}

            def own(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return rebuilt(value, own)
                if id(value) not in passed:
                    passed[id(value)] = value.copy()
                return passed[id(value)]

            output = call(*own(tuple(args)), **own(dict(kwargs)))
            outputs = [t for _, t in self.leaves(output)]
            results.extend(outputs)
            total = None
            for tensor, gradient in zip(outputs, gradients, strict=True):
                if gradient is None or tensor.dtype not in _FLOATS:
                    continue
                # the gradient of this sum with respect to the tensor is the one that was given, to the last bit
                if tensor.dtype in (ms.float16, ms.bfloat16):
                    tensor = tensor.astype(ms.float32)
                part = (tensor * gradient.astype(tensor.dtype)).sum()
                total = part if total is None else total + part
            return Tensor(0.0, ms.float32) if total is None else total

        of_inputs: Sequence[Any] = [None] * len(order)
        of_weights: Sequence[Any] = [None] * len(weights)
        inputs = [by_id[key].copy() for key in order]
        held = list(weights.values())
        try:
            if not any(g is not None for g in gradients) or not (inputs or held):
                forward(*inputs)
            elif not inputs:
                _, of_weights = ms.value_and_grad(forward, None, held)()
            elif not held:
                _, found = ms.value_and_grad(forward, tuple(range(len(inputs))))(*inputs)
                of_inputs = found if isinstance(found, tuple) else (found,)
            else:
                _, (found, of_weights) = ms.value_and_grad(forward, tuple(range(len(inputs))), held)(*inputs)
                of_inputs = found if isinstance(found, tuple) else (found,)
        except BaseException:
            _pynative_executor.clear_res()  # as in `run`
            raise
        by_input = dict(zip(order, of_inputs, strict=True))
        return PulledBack(
            tuple(results),
            tuple(by_input.get(id(t)) for t in given),
            dict(zip(weights, of_weights, strict=True)),
        )

    def widen(self, tensor: Any) -> Callable[[], None] | None:
        wide = _WIDE.get(tensor.dtype)
        if wide is None:
            return None
        dtype = tensor.dtype
        if tensor.has_init:
            tensor.init_data()
        own = tensor.asnumpy()  # the tensor's memory, which its new dtype does not free
        tensor.set_dtype(wide)

        def undo() -> None:
            tensor.set_dtype(dtype)  # assign_value alone leaves what kernels are told of the dtype as it was
            if dtype != ms.bfloat16:  # for which numpy has no dtype: new memory, but there and back is exact
                tensor.assign_value(Tensor.from_numpy(own))

        return undo

    @contextmanager
    def computing_in_float64(self) -> Iterator[None]:
        # all conversions come down to these two
        shadow, native, cast = vars(Tensor).get("to"), Tensor.to, ops.Cast.__call__

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return native(tensor, *map(_wider, args), **{k: _wider(v) for k, v in kwargs.items()})

        def call(primitive: Any, input_x: Any, dtype: Any) -> Any:
            return cast(primitive, input_x, _wider(dtype))

        Tensor.to, ops.Cast.__call__ = to, call
        try:
            yield
        finally:
            ops.Cast.__call__ = cast
            if shadow is None:
                del Tensor.to
            else:
                Tensor.to = shadow

    def has_float64(self, name: str) -> bool:
        return name.rpartition(".")[2] not in _NARROW_OPS

    def parts(self, module: Any) -> list[Any]:
        return [cell for _, cell in module.cells_and_names()]

    def alter(self, module: Any, kind: str, settings: Mapping[str, Any]) -> bool:
        return altering.alter(module, kind, settings, _attributes(module, kind))

    @contextmanager
    def in_float64(self, module: Any | None) -> Iterator[None]:
        """Convolutions, batch norms and some recurrent layers have no float64 kernel in MindSpore."""
        cells = dict(_walk(module, "", ())) if isinstance(module, nn.Cell) else {}
        for path, cell in cells.items():
            kind = _kind(type(cell))
            if kind in _NO_FLOAT64:
                raise NoFloat64(
                    f"MindSpore has no float64 kernel for {type(cell).__name__} (at {path or 'the root'!r})",
                    hint="take the floor from the other framework's float64, or by perturbing the inputs",
                )
        with super().in_float64(module):
            for cell in self.parts(module) if cells else ():
                if cell.mixed_precision_type is not None:
                    cell.mixed_precision_type = None  # to_float: inputs are cast; put back with all attributes
            try:
                yield
            except (TypeError, RuntimeError) as error:
                if "Float64" not in str(error) and "float64" not in str(error):
                    raise
                raise NoFloat64(
                    f"MindSpore has no float64 kernel: {str(error).splitlines()[0]}",
                    hint="take the floor from the other framework's float64, or by perturbing the inputs",
                ) from error

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        cells = [cell for _, cell in model.cells_and_names()]
        modes = [cell.training for cell in cells]
        model.set_train(False)
        try:
            yield
        finally:
            for cell, training in zip(cells, modes, strict=True):  # parents come first: children have the last word
                cell.set_train(training)

    @contextmanager
    def without_dropout(self, model: Any) -> Iterator[None]:
        # every layer and function that drops ends at one of these primitives, and what a class has as its __call__ is
        # found whatever code the functions have that are being watched
        before = [(cls, vars(cls).get("__call__")) for cls in _dropping_primitives()]
        for cls, _ in before:
            cls.__call__ = _keep_one if cls.__name__ in _DROPPING_ALONE else _keep_all
        try:
            yield
        finally:
            for cls, own in before:
                if own is None:
                    del cls.__call__
                else:
                    cls.__call__ = own

    def mean(self, tensor: Any) -> Any:
        # bfloat16 and float16 have no mean kernel on some devices, and would overflow
        return tensor.astype(ms.float32).mean() if tensor.dtype in (ms.bfloat16, ms.float16) else tensor.mean()

    def seed(self, seed: int) -> None:
        """MindSpore's set_seed also seeds numpy's global generator, from which its initializers draw."""
        ms.set_seed(seed)
        ms.manual_seed(seed)

    def random_state(self) -> Any:
        """Both generators, the seeds of random kernels, and numpy's global generator. What a kernel keeps for itself
        (nn.Dropout without a seed) cannot be read."""
        seeds = importlib.import_module("mindspore.common.seed")  # the package has a function of that name
        numpy_state = np.random.get_state(legacy=True)
        return (
            ms.get_rng_state().asnumpy().tobytes(),
            ms.get_seed(),
            tuple(sorted(seeds._KERNEL_SEED.items(), key=str)),
            tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy_state),
        )

    def restore(self, random_state: Any) -> None:
        generator, seed, kernels, (name, keys, *rest) = random_state
        seeds = importlib.import_module("mindspore.common.seed")
        vars(seeds)["_GLOBAL_SEED"] = seed
        seeds._KERNEL_SEED.clear()
        seeds._KERNEL_SEED.update(kernels)
        ms.set_rng_state(Tensor(np.frombuffer(generator, dtype=np.uint8)))
        np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))


_FLOATS = frozenset(
    {ms.float16, ms.float32, ms.float64, ms.bfloat16, ms.complex64, ms.complex128}  # those that can have gradients
)

#: Layer kinds without a float64 kernel; tests/contract/test_mindspore_replay.py looks whether that is still so. Those
#: of layer_norm, lstm and multihead_attention take float64 and give float64, but compute with float32 in between.
_NO_FLOAT64 = frozenset(
    """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm1d batch_norm2d batch_norm3d
    batch_norm sync_batch_norm layer_norm multihead_attention prelu lstm lstm_cell gru_cell
    rnn_cell""".split()
)
_NARROW_OPS = frozenset({"LayerNorm", "layer_norm", "LSTM", "multi_head_attention_forward"})

#: Lower precisions, and what takes their place where everything is computed in float64.
_WIDE = {**dict.fromkeys((ms.float32, ms.float16, ms.bfloat16), ms.float64), ms.complex64: ms.complex128}


def _wider(dtype: Any) -> Any:
    return _WIDE.get(dtype, dtype) if isinstance(dtype, type(ms.float32)) or dtype in _WIDE else dtype


def _primitive_in(function: Any) -> Any | None:
    """The primitive whose call `_PrimitiveCall` told."""
    first = function.args[0] if isinstance(function, partial) and len(function.args) == 1 else None
    return first if isinstance(first, ops.Primitive) else None


def _either(operator: Any, method: Any) -> Callable[..., Any]:
    """An operator, and the method of its name, which takes more arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args) if method is None or (len(args) <= 2 and not kwargs) else method(*args, **kwargs)

    return call


#: Primitives that drop elements: with the mask beside the result, and without.
_DROPPING = frozenset({"Dropout", "Dropout2D", "Dropout3D", "DropoutExt"})
_DROPPING_ALONE = frozenset({"FuncDropoutExt", "InplaceDropout", "DropoutDoMaskExt", "DropoutDoMask"})


def _dropping_primitives() -> list[Any]:
    found: dict[int, Any] = {}
    for space in ("mindspore.ops", "mindspore.ops.auto_generate", "mindspore.ops.operations"):
        for name in _DROPPING | _DROPPING_ALONE:
            cls = getattr(sys.modules.get(space), name, None)
            if isinstance(cls, type):
                found[id(cls)] = cls
    return list(found.values())


def _keep_all(primitive: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return x, ops.ones_like(x)


def _keep_one(primitive: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


_dtype_names: dict[Any, str] = {}


def _dtype_name(dtype: Any) -> str:
    try:
        return _dtype_names[dtype]
    except KeyError:
        own = str(dtype)
        return _dtype_names.setdefault(dtype, _DTYPE_NAMES.get(own, own.lower()))


@cache
def _device() -> str:
    """One device for the whole process. Not Tensor.device, which waits for the tensor to be computed."""
    return str(ms.get_context("device_target")).lower()


def _trainable(tensor: Any) -> bool:
    return bool(tensor.requires_grad) if isinstance(tensor, Parameter) else True


def _require_pynative() -> None:
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        raise FrameworkError(
            "MindSpore is in graph mode, where calls of modules and ops cannot be seen",
            hint="call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) first",
        )


# -- what a model consists of ----------------------------------------------------------------------------------------


def _is_mindspore(cls: type) -> bool:
    return cls.__module__.split(".", 1)[0] == "mindspore"


def _kind(cls: type) -> str | None:
    return next((_KINDS[c.__name__] for c in cls.__mro__ if c.__name__ in _KINDS and _is_mindspore(c)), None)


def _hidden(parent: Any, child: Any) -> bool:
    """Whether `child` is an implementation detail of a framework layer."""
    return _is_mindspore(type(child)) and (
        type(child).__name__.startswith("_") or (_kind(type(parent)) in _CLOSED and _is_mindspore(type(parent)))
    )


def _walk(cell: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Every cell with its path, root first, a shared one once for each of its paths."""
    yield path, cell
    if id(cell) in above:
        return
    for name, child in cell._cells.items():
        if child is not None and not _hidden(cell, child):
            yield from _walk(child, f"{path}.{name}" if path else name, (*above, id(cell)))


def _held(cell: Any) -> Iterator[tuple[str, Any, bool]]:
    """Name, tensor and whether it is registered as a buffer, of everything that the cell itself holds."""
    seen = set()
    for name, tensor in cell._params.items():
        if tensor is not None:
            seen.add(id(tensor))
            yield name, tensor, False
    for name, held in (cell.__dict__.get("_params_list") or {}).items():
        for i, tensor in enumerate(held):
            if id(tensor) not in seen:
                yield f"{name}.{i}", tensor, False
    for name, tensor in cell._buffers.items():
        if tensor is not None:
            yield name, tensor, True
    for name, child in cell._cells.items():
        if child is not None and _hidden(cell, child):
            for inner, tensor, buffer in _held(child):
                yield f"{name}.{inner}", tensor, buffer


#: What every cell has, and a layer's configuration does not include.
_CELL_ATTRIBUTES = frozenset(
    """requires_grad is_top_cell arguments_key grad_ops_label has_bprop mixed_precision_type cell_type cls_name
    parallel_mode support_non_tensor_inputs format data_format return_indices use_pad is_valid is_same is_pad
    shp_flat use_one_hot beta_init gamma_init moving_mean_init moving_var_init is_lstm activation_flag weight_init
    bias_init k_is_v q_is_k padding_top padding_bottom padding_left padding_right ascend_910b_target is_expand
    activation transposed q_proj_weight k_proj_weight v_proj_weight bias_k bias_v head_dim""".split()
)


def _attributes(cell: Any, kind: str) -> dict[str, Any]:
    """The layer's configuration under torch's names, which are the neutral ones."""
    special = _ATTRIBUTES_OF.get(kind, {})
    found: dict[str, Any] = {}
    for name, value in plain_attributes(vars(cell)).items():
        if name not in _CELL_ATTRIBUTES:
            found[special.get(name, _ATTRIBUTES.get(name, name))] = value
    params = {name.rsplit(".", 1)[-1]: tensor for name, tensor, _ in _held(cell)}
    if kind.startswith(("batch_norm", "sync_batch_norm", "instance_norm")):
        inner = cell._cells.get("bn2d", cell)
        momentum, eps = getattr(inner, "momentum", None), getattr(inner, "eps", None)
        if momentum is not None:  # nn stores 1 - what the user wrote; mint is torch's convention already
            found["momentum"] = round(float(momentum), 12)
            raw = momentum if ".mint." in type(cell).__module__ else 1.0 - momentum
            found["momentum_raw"] = round(float(raw), 12)
        if eps is not None:
            found["eps"] = eps
        if "gamma" in params:
            found["affine"] = bool(params["gamma"].requires_grad)
        found.setdefault("track_running_stats", "moving_mean" in params or "running_mean" in params)
        if getattr(inner, "num_features", None) is not None:
            found["num_features"] = inner.num_features
    elif kind == "layer_norm":
        found["elementwise_affine"] = "gamma" in params or "weight" in params
    elif kind.startswith("conv"):
        _conv_attributes(cell, int(kind[-2]), found)
    elif kind in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        keep = found.pop("keep_prob", None)
        if found.get("p") is None and keep is not None:
            found["p"] = round(1.0 - keep, 12)
    elif kind in ("softmax", "log_softmax"):
        axis = getattr(getattr(cell, kind, None), "axis", found.pop("axis", None))
        if isinstance(axis, (tuple, list)) and len(axis) == 1:
            axis = axis[0]
        if axis is not None:
            found["dim"] = axis
    elif kind in ("elu", "celu"):
        found.setdefault("alpha", getattr(getattr(cell, kind, None), "alpha", 1.0))
    elif "pool" in kind:
        _pool_attributes(cell, int(kind[-2]), found)
    elif kind == "local_response_norm" and hasattr(cell, "lrn_op"):
        own = vars(cell.lrn_op)
        found.update({name: own[name] for name in ("depth_radius", "bias", "alpha", "beta")})
    elif kind == "pad" and "paddings" in vars(cell):
        pairs = vars(cell)["paddings"]
        pairs = pairs.asnumpy().tolist() if isinstance(pairs, Tensor) else pairs
        found["padding"] = [int(n) for pair in reversed(pairs) for n in pair]
    elif kind == "pad" and "Reflection" in type(cell).__name__:
        found.setdefault("padding", [int(n) for pair in reversed(vars(cell)["padding"]) for n in pair])
    elif kind == "rnn":
        inner = type(cell._cells.get("rnn")).__name__
        words = [word for word in ("relu", "tanh") if inner.lower().endswith(word)]
        if words:
            found["nonlinearity"] = words[0]
    if kind == "linear" or kind.startswith("conv"):
        found["bias"] = "bias" in params
    return found


def _pool_attributes(cell: Any, dims: int, found: dict[str, Any]) -> None:
    """What the layer only told its primitive."""
    told: dict[str, Any] = {}
    for primitive in cell._primitives.values():
        told.update(getattr(primitive, "attrs", {}))
    mode = str(found.get("pad_mode", "")).lower()
    if mode == "valid":
        found["padding"] = 0
    elif mode == "same":
        found["padding"] = "same"
    elif "pads" in told:
        found["padding"] = [int(n) for n in told["pads"][-dims:]]
    elif "pad" in told:  # before and after on each axis
        found["padding"] = [int(n) for n in told["pad"][-2 * dims :]]
    for name in ("ceil_mode", "count_include_pad", "divisor_override", "dilation", "output_size"):
        if name in told:
            value = told[name]
            found[name] = [int(n) for n in value[-dims:]] if isinstance(value, (tuple, list)) else value
    if found.get("divisor_override") == 0:  # which stands for none there
        found["divisor_override"] = None
    if isinstance(found.get("output_size"), list):
        found["output_size"] = [None if n == -1 else n for n in found["output_size"]]


def _conv_attributes(cell: Any, dims: int, found: dict[str, Any]) -> None:
    for name in ("kernel_size", "stride", "dilation"):
        value = found.get(name)
        if isinstance(value, int):
            found[name] = [value] * dims
        elif isinstance(value, list):
            found[name] = value[-dims:]  # a 1d layer is a 2d one of height 1
    mode = found.get("pad_mode")
    padding = found.get("padding")
    if mode == "same":
        found["padding"] = "same"
    elif mode == "valid":
        found["padding"] = [0] * dims
    elif isinstance(padding, int):
        found["padding"] = [padding] * dims
    elif isinstance(padding, list) and len(padding) == 2 * dims:  # before and after on each axis
        before, after = padding[::2], padding[1::2]
        found["padding"] = before if before == after else padding
    if mode is not None:
        found["padding_mode"] = "zeros"


# -- in-place changes ------------------------------------------------------------------------------------------------


class _Changes:
    """Counts the in-place changes that MindSpore's version counter does not."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.steps = 0  # optimizer calls: any parameter may have changed

    def bump(self, tensor: Any) -> None:
        key = id(tensor)
        entry = self._counts.get(key)
        if entry is not None and entry[0]() is tensor:
            self._counts[key] = (entry[0], entry[1] + 1)
        else:
            counts = self._counts
            self._counts[key] = (weakref.ref(tensor, lambda gone: _forget(counts, key, gone)), 1)

    def count(self, tensor: Any) -> int:
        entry = self._counts.get(id(tensor))
        changed = entry[1] if entry is not None and entry[0]() is tensor else 0
        return changed + self.steps if isinstance(tensor, Parameter) else changed


def _forget(counts: dict[int, tuple[weakref.ref[Any], int]], key: int, gone: weakref.ref[Any]) -> None:
    entry = counts.get(key)
    if entry is not None and entry[0] is gone:
        del counts[key]


_CHANGES = _Changes()


# -- watching --------------------------------------------------------------------------------------------------------


class _Thread(threading.local):
    """What this thread is being watched for."""

    watch: _Watch | None = None


_THREAD = _Thread()


class _Watch:
    """The open observations of one thread: usually one, more when captures are nested."""

    __slots__ = ("backwards", "cells", "ears", "inside", "keep", "sink", "told")

    def __init__(self) -> None:
        self.ears: list[tuple[dict[int, Any], Sink, Level]] = []
        self.cells: dict[int, Sink] = {}  # who is told of which module
        self.sink: Sink | None = None  # who is told of ops
        self.told: Any = None  # what is about to be called, while the sink is told of it
        self.inside = False  # in a public call already, or in code that is not part of the network
        self.backwards = 0

    def tune(self) -> None:
        cells: dict[int, list[Sink]] = {}
        for watched, sink, _ in self.ears:
            for key in watched:
                cells.setdefault(key, []).append(sink)
        self.cells = {key: _one(sinks) for key, sinks in cells.items()}
        listening = [sink for _, sink, level in self.ears if level is Level.OP]
        self.sink = _one(listening) if listening else None

    def op(self, name: str, function: Any, skip: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tell of an outermost call; `skip` arguments (a primitive itself) are not the user's."""
        sink = self.sink
        if sink is None:
            return function(*args, **kwargs)
        self.inside = True
        try:
            given = args[skip:] if skip else args
            for value in given:
                if isinstance(value, Tensor):
                    break
            else:
                if not (_has_tensor(given) or (kwargs and _has_tensor(kwargs.values()))):
                    output = function(*args, **kwargs)
                    if isinstance(output, Tensor) or (isinstance(output, (tuple, list)) and _has_tensor(output)):
                        self.told = partial(function, *args[:skip]) if skip else function
                        token = sink.enter_op(name, given, kwargs)  # made from nothing: ops.zeros
                        self.told = None
                        if token is not None:
                            sink.leave(token, output)
                    return output
            self.told = partial(function, *args[:skip]) if skip else function
            token = sink.enter_op(name, given, kwargs)
            self.told = None
            if token is None:
                return function(*args, **kwargs)
            try:
                output = function(*args, **kwargs)
            except BaseException:
                sink.fail(token)
                raise
            sink.leave(token, output)
            return output
        finally:
            self.inside = False


class _Fan:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return [(sink, sink.enter_module(module, args, kwargs)) for sink in self._sinks]

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return [(sink, sink.enter_op(name, args, kwargs)) for sink in self._sinks]

    def leave(self, token: Any, output: Any) -> None:
        for sink, own in reversed(token):
            if own is not None:
                sink.leave(own, output)

    def fail(self, token: Any) -> None:
        for sink, own in reversed(token):
            if own is not None:
                sink.fail(own)


def _one(sinks: list[Sink]) -> Sink:
    return sinks[0] if len(sinks) == 1 else _Fan(sinks)


def _has_tensor(values: Any) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            return True
        if isinstance(value, (tuple, list)) and _has_tensor(value):
            return True
    return False


@contextmanager
def _quiet() -> Iterator[None]:
    """What is called meanwhile is Twinscope's own."""
    watch = _THREAD.watch
    if watch is None:
        yield
        return
    before, watch.inside = watch.inside, True
    try:
        yield
    finally:
        watch.inside = before


@contextmanager
def _observe(cells: dict[int, Any], sink: Sink, level: Level) -> Iterator[None]:
    _require_pynative()
    watch = _THREAD.watch or _Watch()
    ear = (cells, sink, level)
    _PATCHES.open(level)
    try:
        watch.ears.append(ear)
        watch.tune()
        _THREAD.watch = watch
        yield
    finally:
        watch.ears = [e for e in watch.ears if e is not ear]
        watch.tune()
        if not watch.ears:
            _THREAD.watch = None
        _PATCHES.close(level)


class _Call:
    """What stands in for one function while somebody watches. `original` has the function's own code."""

    __slots__ = ("original",)

    def __init__(self, original: Any) -> None:
        self.original = original

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Op(_Call):
    """A public function or Tensor method."""

    __slots__ = ("name",)

    def __init__(self, original: Any, name: str) -> None:
        super().__init__(original)
        self.name = name

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None or watch.inside:
            return self.original(*args, **kwargs)
        return watch.op(self.name, self.original, 0, args, kwargs)


class _MutatingOp(_Op):
    """One that changes its first argument."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None:
            return self.original(*args, **kwargs)
        try:
            if watch.inside or not self.name:
                return self.original(*args, **kwargs)
            return watch.op(self.name, self.original, 0, args, kwargs)
        finally:
            if args and isinstance(args[0], Tensor):
                _CHANGES.bump(args[0])


class _PrimitiveCall(_Call):
    """``__call__`` of primitives: named by the class of the one that is called."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None:
            return self.original(*args, **kwargs)
        primitive = args[0]
        if "side_effect_mem" in primitive.attrs:
            try:
                return self._tell(watch, primitive, args, kwargs)
            finally:
                positions = _MUTATED_ARGUMENTS.get(type(primitive).__name__)
                for i, value in enumerate(args[1:]):
                    changed = i in positions if positions is not None else i == 0 or isinstance(value, Parameter)
                    if changed and isinstance(value, Tensor):
                        _CHANGES.bump(value)
        if watch.inside:
            return self.original(*args, **kwargs)
        return self._tell(watch, primitive, args, kwargs)

    def _tell(self, watch: _Watch, primitive: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if watch.inside:
            return self.original(*args, **kwargs)
        cls = type(primitive)
        name = _primitive_name(cls, primitive.name if cls is ops.Primitive else cls.__name__)
        if name is None:
            return self.original(*args, **kwargs)
        return watch.op(name, self.original, 1, args, kwargs)


class _CellCall(_Call):
    """``Cell.__call__``."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None:
            return self.original(*args, **kwargs)
        cell = args[0]
        sink = watch.cells.get(id(cell))
        before = watch.inside
        if sink is None:
            if not _is_optimizer(type(cell)):
                return self.original(*args, **kwargs)
            watch.inside = True
            try:
                return self.original(*args, **kwargs)
            finally:
                watch.inside = before
                _CHANGES.steps += 1
        try:
            watch.inside = True
            token = sink.enter_module(cell, args[1:], kwargs)
            watch.inside = False
            try:
                output = self.original(*args, **kwargs)
            except BaseException:
                if token is not None:
                    watch.inside = True
                    sink.fail(token)
                raise
            if token is not None:
                watch.inside = True
                sink.leave(token, output)
            return output
        finally:
            watch.inside = before


class _Silent(_Call):
    """Compiling or running a graph: not told."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _quiet():
            return self.original(*args, **kwargs)


class _Backward(_Call):
    """A backward pass: not told, and known to `in_backward`."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None:
            return self.original(*args, **kwargs)
        before, watch.inside = watch.inside, True
        watch.backwards += 1
        try:
            return self.original(*args, **kwargs)
        finally:
            watch.backwards -= 1
            watch.inside = before


class _Recomputation(_Call):
    """Forward calls made again, within a backward pass: told."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = _THREAD.watch
        if watch is None:
            return self.original(*args, **kwargs)
        before, watch.inside = watch.inside, False
        try:
            return self.original(*args, **kwargs)
        finally:
            watch.inside = before


_optimizers: dict[type, bool] = {}


def _is_optimizer(cls: type) -> bool:
    try:
        return _optimizers[cls]
    except KeyError:
        answer = any(c.__name__ == "Optimizer" and _is_mindspore(c) for c in cls.__mro__)
        return _optimizers.setdefault(cls, answer)


_primitive_names: dict[tuple[type, str], str | None] = {}


def _primitive_name(cls: type, own: str) -> str | None:
    """The public name of a primitive; None when it is bookkeeping."""
    try:
        return _primitive_names[cls, own]
    except KeyError:
        name: str | None
        if own in _SKIPPED_PRIMITIVES or own.startswith("_"):
            name = None
        elif _is_mindspore(cls):
            name = f"mindspore.ops.{own}"
        else:
            name = f"{cls.__module__}.{cls.__qualname__}"
        return _primitive_names.setdefault((cls, own), name)


def _template(*args: Any, **kwargs: Any) -> Any:
    return "call".call(args, kwargs)  # type: ignore[attr-defined]


def _code_for(function: types.FunctionType, call: _Call) -> types.CodeType:
    """A code object that passes everything to `call`, and looks from outside like the function's own."""
    own, template = function.__code__, _template.__code__
    code = template.replace(
        co_consts=tuple(call if value == "call" else value for value in template.co_consts),
        co_name=own.co_name,
        co_filename=own.co_filename,
        co_firstlineno=own.co_firstlineno,
        co_freevars=own.co_freevars,  # unused, but a function's closure must fit its code
    )
    return code.replace(co_qualname=own.co_qualname) if sys.version_info >= (3, 11) else code


def _copy(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class _Swap:
    """One function, its own code and the other."""

    __slots__ = ("function", "other", "own")

    def __init__(self, function: types.FunctionType, make: Callable[[Any], _Call]) -> None:
        self.function = function
        self.own = function.__code__
        self.other = _code_for(function, make(_copy(function)))


class _Patches:
    """Everything that is exchanged while somebody watches, counted so that nested observations share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._always: list[_Swap] = []
        self._ops: dict[types.FunctionType, _Swap] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        self._open = {Level.MODULE: 0, Level.OP: 0}
        self._swapped: list[_Swap] = []
        self._shadowed: list[str] = []

    def open(self, level: Level) -> None:
        with self._lock:
            if not self._always:
                self._always = list(_module_swaps())
                self._methods = dict(_native_methods())
            self._open[level] += 1
            if level is Level.OP and self._open[level] == 1:
                self._find_ops()
            self._set()

    def close(self, level: Level) -> None:
        with self._lock:
            self._open[level] -= 1
            self._set()

    def _set(self) -> None:
        """Make what is exchanged agree with who is watching."""
        ops_wanted, any_wanted = self._open[Level.OP] > 0, any(self._open.values())
        wanted = (self._always if any_wanted else []) + (list(self._ops.values()) if ops_wanted else [])
        if len(wanted) != len(self._swapped):
            for swap in self._swapped:
                swap.function.__code__ = swap.own
            self._swapped = wanted
            for swap in wanted:
                swap.function.__code__ = swap.other
        methods = [n for n in self._methods if ops_wanted or (any_wanted and n in _MUTATING)]
        if len(methods) != len(self._shadowed):
            for name in self._shadowed:
                delattr(Tensor, name)
            self._shadowed = methods
            for name in methods:
                setattr(Tensor, name, self._methods[name])

    def _find_ops(self) -> None:
        """Prepare for functions not met before: all at first, later what was imported or defined since."""
        for function, name in _public_functions():
            if function not in self._ops:
                self._ops[function] = _Swap(function, partial(_Op, name=name))
        for function in _primitive_calls():
            if function not in self._ops:
                self._ops[function] = _Swap(function, _PrimitiveCall)


def _module_swaps() -> Iterator[_Swap]:
    """What is exchanged at any level: modules, backward passes, compiled regions, and whatever changes in place."""
    from mindspore.graph import api

    recompute = importlib.import_module("mindspore.common.recompute")  # the package has a function of that name

    yield _Swap(nn.Cell.__call__, _CellCall)
    yield _Swap(nn.Cell.compile_and_run, _Silent)
    yield _Swap(api._JitExecutor.__call__, _Silent)
    yield _Swap(api._PyNativeExecutor.grad, _Backward)
    yield _Swap(recompute._RecomputeHandle.recompute, _Recomputation)
    yield _Swap(recompute._RecomputeCell.bprop, _Recomputation)
    for owner, prefix in ((ops, "mindspore.ops"), (Tensor, "mindspore.Tensor"), (Parameter, "mindspore.Parameter")):
        for name in sorted(_MUTATING):
            function = vars(owner).get(name)
            if isinstance(function, types.FunctionType):
                # loading values is not part of the network: counted, not told
                told = "" if name in ("assign_value", "set_data") else f"{prefix}.{name}"
                yield _Swap(function, partial(_MutatingOp, name=told))
    for primitive in (ops.BatchNorm, ops.Assign, ops.AssignAdd, ops.AssignSub):
        function = vars(primitive).get("__call__")
        if isinstance(function, types.FunctionType):
            yield _Swap(function, _PrimitiveCall)


def _native_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Stand-ins for the C++ methods of Tensor, by name."""
    for name, native in vars(TensorPy).items():
        if name in vars(Tensor) or type(native) is not types.MethodDescriptorType or not _told_method(name):
            continue
        kind = _MutatingOp if name in _MUTATING else _Op
        yield name, _stand_in(kind(native, f"mindspore.Tensor.{_OPERATORS.get(name, name)}"), native)


def _stand_in(op: _Op, native: Any) -> Callable[..., Any]:
    call = op.call

    def method(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs)

    method.__name__, method.__qualname__, method.__doc__ = native.__name__, native.__qualname__, native.__doc__
    return method


def _told_method(name: str) -> bool:
    return name in _TOLD_DUNDERS if name.startswith("_") else name not in _SKIPPED


def _public_functions() -> Iterator[tuple[types.FunctionType, str]]:
    """Every public function with its public name."""
    always = {swap.function for swap in _PATCHES._always}
    seen: set[Any] = set()
    stand_ins = set(_PATCHES._methods.values())
    for name, method in vars(Tensor).items():
        if not isinstance(method, types.FunctionType) or not _told_method(name) or method in always:
            continue
        if method not in stand_ins:
            yield method, f"mindspore.Tensor.{_OPERATORS.get(name, name)}"
    inner = sorted(name for name in sys.modules if name.startswith("mindspore.ops.function."))
    modules = [(space, sys.modules[space]) for space in (*_NAMESPACES, *inner) if space in sys.modules]
    # what a namespace declares comes before what merely is in it
    declared = [(space, name, vars(m).get(name)) for space, m in modules for name in getattr(m, "__all__", ())]
    present = [(space, name, function) for space, m in modules for name, function in list(vars(m).items())]
    for places in (declared, present):
        for space, name, function in places:
            if (
                isinstance(function, types.FunctionType)
                and function not in seen
                and function not in always
                and not name.startswith("_")
                and name not in _SKIPPED
                and name not in _HIGHER_ORDER
                and function.__module__.startswith(_DEFINED_IN)
                and not function.__module__.startswith(_NOT_OPS)
            ):
                seen.add(function)
                yield function, f"{space}.{name}"


def _primitive_calls() -> Iterator[types.FunctionType]:
    """``__call__`` of every class of primitives."""
    always = {swap.function for swap in _PATCHES._always}
    seen: set[type] = set()
    todo: list[type] = [ops.Primitive]
    while todo:
        cls = todo.pop()
        if cls in seen:
            continue
        seen.add(cls)
        todo.extend(type.__subclasses__(cls))
        function = vars(cls).get("__call__")
        if isinstance(function, types.FunctionType) and function not in always:
            yield function


_PATCHES = _Patches()
