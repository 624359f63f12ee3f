"""The adapter seam: everything that Twinscope knows of a framework goes through an `Adapter`.

To support a framework, subclass `Adapter` in a module of its own, implement the methods that raise
`NotImplementedError`, and register it under the entry-point group ``twinscope.adapters`` with the framework's
top-level package as the name. Nothing else in Twinscope may import a framework. Run
``twinscope.testing.conformance(adapter, zoo)`` to see whether it is right.

Adapters map to a neutral vocabulary (`KINDS`, roles, numpy dtype names), never to each other.

Who does what while a model is watched:

    framework --hooks, modes, patches--> Adapter.observe --enter/leave--> Sink (twinscope.capturing.Recorder)
                                         Adapter.watch_gradient <-- the sink asks for gradients of tensors it saw

The adapter says *that* a module or op is called, with the arguments as the user passed them. The sink decides what of
it to keep, walks nested structures with `leaves`, and comes back for `measure`, `to_numpy` and `watch_gradient`.
"""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..records import Level, ModuleInfo, Stats, TensorMeta

if TYPE_CHECKING:
    from .optimizing import Told

Array = npt.NDArray[Any]

#: Neutral layer kinds. An adapter says None for anything else.
KINDS = frozenset(
    """linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm1d batch_norm2d
    batch_norm3d batch_norm sync_batch_norm layer_norm group_norm instance_norm1d instance_norm2d instance_norm3d
    rms_norm local_response_norm embedding prelu relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh
    softplus softsign hardtanh hardswish hardsigmoid log_sigmoid softmax log_softmax identity flatten dropout dropout1d
    dropout2d dropout3d alpha_dropout
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    multihead_attention transformer transformer_encoder transformer_encoder_layer transformer_decoder
    transformer_decoder_layer lstm gru rnn lstm_cell gru_cell rnn_cell upsample pixel_shuffle pixel_unshuffle pad fold
    unfold sequential module_list module_dict cosine_similarity mse_loss l1_loss smooth_l1_loss cross_entropy_loss
    nll_loss bce_loss bce_with_logits_loss kl_div_loss""".split()
)


class Sink(Protocol):
    """What receives the events of `Adapter.observe`.

    `enter_*` returns a token to hand back, or None when the call is not wanted (then nothing more is due for it). Every
    token is handed back once, to `leave` or to `fail`, last in first out. Methods never raise into the user's model.
    """

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...
    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...
    def leave(self, token: Any, output: Any) -> None: ...
    def fail(self, token: Any) -> None: ...


class PulledBack(NamedTuple):
    """What `Adapter.pull_back` gives: tensors of the framework, None for what needs no gradient."""

    #: every tensor that the call returned, as `Adapter.leaves` orders them
    outputs: tuple[Any, ...]
    #: the gradient of every tensor among the arguments, as `leaves((args, kwargs))` orders them
    inputs: tuple[Any | None, ...]
    #: the gradients of a module's trainable parameters, by path; those of a function are among its inputs
    parameters: dict[str, Any | None]


class Learned(NamedTuple):
    """What `Adapter.learn` gives: tensors of the framework."""

    output: Any
    loss: Any
    #: the trainable parameters and their gradients, None for one that got none; in the framework's own order
    gradients: tuple[tuple[Any, Any | None], ...]


class Adapter:
    """All that is known of one framework."""

    #: the framework's name and the top-level packages whose classes belong to it
    name: str = ""
    packages: tuple[str, ...] = ()
    #: file-path fragments of the framework's own code (as in ``/site-packages/torch/``), to find the user's line
    internal_paths: tuple[str, ...] = ()
    #: and of the code of its layers, with which one of them begins
    layer_paths: tuple[str, ...] = ()
    #: fragments of code whose calls are not part of the network (optimizers, data loaders)
    ignored_paths: tuple[str, ...] = ()

    # -- what things are -------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, str]:
        """The framework's version and those of packages that matter to it (numpy): ``{"torch": "2.13.0"}``."""
        raise NotImplementedError

    def is_model(self, obj: object) -> bool:
        """Whether `obj` is a module of this framework."""
        raise NotImplementedError

    def is_tensor(self, obj: object) -> bool:
        """Whether `obj` is a tensor of this framework; parameters are."""
        raise NotImplementedError

    def modules(self, model: Any) -> list[tuple[ModuleInfo, Any]]:
        """Every module once, root first (path ""), in definition order, with the object itself.

        Parameters and buffers are listed with the module that directly holds them, and with their `axes` where this
        framework lays them out in another way than PyTorch. A parameter met before has
        `tied_to`; a module met before is listed in its first entry's `aliases` only.
        """
        raise NotImplementedError

    def state(self, module: Any) -> dict[str, Any]:
        """The parameters and buffers that `module` itself holds, by name: live tensors, not copies."""
        raise NotImplementedError

    def stored_names(self, model: Any) -> dict[str, str]:
        """The names of parameters and buffers in the framework's checkpoint files, by path, where they are others."""
        return {}

    def unstored_names(self, model: Any) -> frozenset[str]:
        """Paths of the buffers that the framework leaves out of its checkpoint files."""
        return frozenset()

    def meta(self, tensor: Any) -> TensorMeta:
        """Shape, numpy dtype name, device. Never synchronises with a device."""
        raise NotImplementedError

    def requires_grad(self, tensor: Any) -> bool:
        """Whether a backward pass would reach `tensor`."""
        raise NotImplementedError

    def version(self, tensor: Any) -> int:
        """A number that changes when `tensor` is changed in place (0 where the framework cannot tell)."""
        return 0

    def memory(self, tensor: Any) -> Any | None:
        """A key that is equal for two tensors when they are the same elements in the same memory, as long as both are
        alive; None where that cannot be known cheaply."""
        return None

    # -- moving numbers --------------------------------------------------------------------------------------------

    def to_numpy(self, tensor: Any) -> Array:
        """The values on the host, in their true dtype (bfloat16 by ml_dtypes). May share the tensor's memory."""
        raise NotImplementedError

    def from_numpy(self, array: Array, like: Any | None = None) -> Any:
        """A new tensor with these values; on `like`'s device and in its dtype when `like` is given."""
        raise NotImplementedError

    def assign(self, tensor: Any, array: Array) -> None:
        """Overwrite a parameter or buffer in place; shapes must agree. Autograd is not told."""
        raise NotImplementedError

    def gradient(self, parameter: Any) -> Any | None:
        """The gradient stored on `parameter`, None where there is none or the framework stores none."""
        return None

    def measure(self, tensor: Any) -> Any:
        """Start computing `Stats`; a handle for `collect`. Must not synchronise a device; on CPU the answer itself."""
        from ..metrics import array_stats

        return array_stats(self.to_numpy(tensor))

    def collect(self, handles: Sequence[Any]) -> list[Stats]:
        """Read back many handles of `measure` at once."""
        return list(handles)

    # -- watching --------------------------------------------------------------------------------------------------

    def observe(self, model: Any, sink: Sink, level: Level) -> AbstractContextManager[None]:
        """While the context is open, tell `sink` of every call of the model's modules and, at Level.OP, of every
        outermost public API call made in this thread (functions, Tensor methods, operators; not attribute reads).

        Outermost: what a public function calls inside itself is not told. Calls from the framework's own layers are.
        The op's name is its public name ("torch.nn.functional.linear", "torch.Tensor.add"). On the way out, exceptions
        included, everything is as it was. The numbers, the graph and the random state are never touched.
        """
        raise NotImplementedError

    def watch_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Callable[[], None] | None:
        """Call `callback(gradient)`, which returns None, with the total gradient of the loss with respect to `tensor`,
        each time a backward pass reaches it. For a parameter: the gradient of that backward pass, before it is added to
        what was stored. Returns a function that stops it, or None when the tensor requires no gradient."""
        raise NotImplementedError

    def in_backward(self) -> bool:
        """Whether a backward pass is running in this thread: forward calls made now are recomputation."""
        return False

    def told(self) -> Callable[..., Any] | None:
        """Within `Sink.enter_op`: what is about to be called, which takes the very arguments that are told.

        It may be kept and called later. A name does not say all: a primitive of MindSpore's has its configuration in
        itself, and the layers of Paddle call private functions under public names. None outside `enter_op`.
        """
        return None

    def function(self, name: str) -> Callable[..., Any] | None:
        """The public function or Tensor method that `observe` tells under `name`, for a trace of another process.

        It takes the arguments that `enter_op` was given. None where the name does not determine it.
        """
        raise NotImplementedError

    def configuration(self, function: Any) -> Mapping[str, Any]:
        """What a function that `told` gave has in itself, beside its arguments: that of a primitive, by name."""
        return {}

    def configured(self, function: Any, changes: Mapping[str, Any]) -> Callable[..., Any] | None:
        """Another such function, of another configuration; None where it has none of these."""
        return None

    def is_inplace(self, name: str) -> bool:
        """Whether the op of this name changes its first argument.

        ``relu(x, inplace=True)`` does not say so in its name; `version` tells.

        >>> Adapter().is_inplace("torch.Tensor.add_"), Adapter().is_inplace("torch.Tensor.__setitem__")
        (True, True)
        >>> Adapter().is_inplace("torch.Tensor.add"), Adapter().is_inplace("torch.Tensor.__rsub__")
        (False, False)
        """
        last = name.rpartition(".")[2]
        return bool(_INPLACE.fullmatch(last)) or (last.endswith("_") and not last.endswith("__"))

    # -- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Callable[[Any], Any] | None,
        backward: bool,
    ) -> tuple[Any, Any]:
        """One forward pass, and with `backward` one backward pass from ``loss(output)``; (output, loss tensor or None).

        With `loss` None and `backward`, the loss is `default_loss(output)`. Gradients of parameters need not be stored,
        but `watch_gradient` must see them.
        """
        raise NotImplementedError

    def open_tape(self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """To be called before a forward pass whose loss will be handed to `backward`; what that then needs.

        None where every forward pass can be followed by a backward pass anyway.
        """
        return None

    def drop_tape(self, tape: Any) -> None:
        """There will be no `backward` for this tape: the framework is as it was before `open_tape`."""

    def backward(self, model: Any, loss: Any, tape: Any) -> dict[str, Any]:
        """The backward pass from a loss that somebody computed from the model's output, as they would do it.

        Where the framework stores gradients on parameters nothing is returned; else the gradients of all trainable
        parameters, by path.
        """
        loss.backward()
        return {}

    def learn(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Any] | None
    ) -> Learned:
        """The first half of a training step, for real: forward, loss, backward. Gradients stored before are dropped,
        and those of this pass stay where the framework's optimizers look for them."""
        raise NotImplementedError

    # -- optimizers ------------------------------------------------------------------------------------------------

    def is_optimizer(self, obj: object) -> bool:
        """Whether `obj` is an optimizer of this framework."""
        return False

    def optimized(self, optimizer: Any) -> list[Any]:
        """The parameters that an optimizer updates, in its own order."""
        raise NotImplementedError

    def update(self, optimizer: Any, learned: Learned) -> None:
        """The second half of a training step: what the user would write to apply these gradients."""
        raise NotImplementedError

    def rules(self, optimizer: Any, gradients: Sequence[Any] | None = None) -> list[Told]:
        """What an optimizer will do to each of its parameters in its next step, as it stands now: kind and settings in
        neutral words, what it remembers, and the gradients that it will apply, which are `gradients` where the
        framework does not store them."""
        raise NotImplementedError

    def watching_updates(
        self, optimizer: Any, seen: Callable[[Sequence[Any] | None], None]
    ) -> AbstractContextManager[None]:
        """While the context is open, call `seen` right before each step of an optimizer, whoever makes it, with the
        gradients that it is handed, None where they are stored on the parameters."""
        raise NotImplementedError

    def clear_gradients(self, parameters: Sequence[Any]) -> None:
        """Drop the gradients stored on these parameters; nothing where the framework stores none."""

    def evaluating(self, model: Any) -> AbstractContextManager[None]:
        """While the context is open, every module of `model` is in evaluation mode; then each is as it was."""
        raise NotImplementedError

    def without_dropout(self, model: Any) -> AbstractContextManager[None]:
        """While the context is open, dropout of every kind, of layers and of functions, hands on what it is given.

        However it is reached: layers, functions, kernels of recurrent layers and of attention. Modes, settings and
        buffers of the modules are the caller's, before, meanwhile and afterwards; nothing random is drawn.
        """
        raise NotImplementedError

    def mean(self, tensor: Any) -> Any:
        """The differentiable mean of a floating tensor, as a scalar tensor."""
        raise NotImplementedError

    def seed(self, seed: int) -> None:
        """Seed everything random in the framework."""
        raise NotImplementedError

    def random_state(self) -> Any:
        """The random state, comparable by ==: to prove that watching did not touch it, and for `restore`."""
        raise NotImplementedError

    def restore(self, random_state: Any) -> None:
        """Put back what `random_state` gave."""
        raise NotImplementedError

    # -- replaying -------------------------------------------------------------------------------------------------

    def pull_back(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        gradients: Sequence[Any | None],
        fixed: Sequence[Any] = (),
    ) -> PulledBack:
        """Call a module or function, and pull gradients of what it returns back through it alone.

        `gradients` are in the order of ``leaves(output)``, None where there is none, and are cast to the dtype of their
        output. `fixed` are those tensors among the arguments that need no gradient (running statistics). Where a tensor
        comes twice among the arguments, both places get its total gradient. The tensors in `args` are not changed,
        whatever the call does to its own; no gradient is stored on any parameter; mode, dtype and random state are the
        caller's, and so are buffers that the call moves.
        """
        raise NotImplementedError

    def widen(self, tensor: Any) -> Callable[[], None] | None:
        """Make a floating tensor float64 in place, the same object; a function that gives it back its own memory.

        None, and nothing done, where it is no floating tensor or is float64 already.
        """
        raise NotImplementedError

    def computing_in_float64(self) -> AbstractContextManager[None]:
        """While the context is open, what asks for a lower precision (``x.float()``, ``dtype=float32``, a default) gets
        float64, as far as the framework lets that be seen."""
        raise NotImplementedError

    def has_float64(self, name: str) -> bool:
        """False of an op that takes float64 and gives float64, but is known to compute with less."""
        return True

    def parts(self, module: Any) -> list[Any]:
        """`module` and every module within it, those included that `modules` does not list."""
        return [part for _, part in self.modules(module)]

    @contextmanager
    def in_float64(self, module: Any | None) -> Iterator[None]:
        """While the context is open, `module` and all within it hold and compute float64: the floor of all noise.

        Parameters, buffers and other tensors that the modules hold as attributes are changed in place; at the end,
        exceptions included, each has its own memory back, so values, dtype and identity are what they were, and
        whatever was done to them meanwhile is undone. Attributes that the modules set meanwhile are put back too. With
        None, or a function, only `computing_in_float64` is open. Where the framework has no float64 kernel for what the
        module needs, `NoFloat64` is raised, on entry if that is known, else from within.
        """
        with ExitStack() as stack:
            if module is not None and self.is_model(module):
                parts = self.parts(module)
                stack.enter_context(_attributes_kept(parts))
                held = {id(t): t for part in parts for _, t in self.leaves(dict(vars(part)))}
                for tensor in held.values():
                    undo = self.widen(tensor)
                    if undo is not None:
                        stack.callback(undo)
            stack.enter_context(self.computing_in_float64())
            yield

    def alter(self, module: Any, kind: str, settings: Mapping[str, Any]) -> bool:
        """Tell a layer something else, in place; whether it could be told. `altered` puts everything back."""
        return False

    @contextmanager
    def altered(self, module: Any, settings: Mapping[str, Any]) -> Iterator[bool]:
        """While the context is open, a layer computes as if it had been told these settings.

        Names and values are neutral, as `explain.neutral` gives them: ``{"eps": 1e-5}``, ``{"padding": ((1, 1),)}``;
        ``{"training": False}`` is a mode, of everything in the module. It is the same object, with the same parameters,
        hooks and children. Yields False, and nothing is changed, where the layer cannot be told one of them. What the
        layer sets on itself meanwhile is put back too; the values of its buffers are the caller's
        (`running.unchanged`).
        """
        with ExitStack() as stack:
            stack.enter_context(_attributes_kept(self.parts(module)))
            rest = {name: value for name, value in settings.items() if name != "training"}
            if len(rest) < len(settings):
                for part in self.parts(module):
                    part.training = settings["training"]
            told = True
            if rest:
                kind = self.modules(module)[0][0].kind
                try:
                    told = kind is not None and self.alter(module, kind, rest)
                except (TypeError, ValueError, RuntimeError, AttributeError):
                    told = False  # a value that this framework does not have
            if not told:
                stack.close()
            yield told

    # -- shared by all adapters ------------------------------------------------------------------------------------

    def trainable(self, call: Any) -> dict[str, Any]:
        """The trainable parameters of a module by path, each once; none of what is no module."""
        if not self.is_model(call):
            return {}
        found: dict[str, Any] = {}
        for info, module in self.modules(call):
            wanted = [p.name for p in info.params if p.trainable and p.tied_to is None]
            held = self.state(module) if wanted else {}
            found.update({info.param_path(name): held[name] for name in wanted})
        return found

    def default_loss(self, output: Any) -> Any:
        """The sum of the means of every floating tensor in `output`."""
        total = None
        for _, tensor in self.leaves(output):
            if "float" in self.meta(tensor).dtype:
                mean = self.mean(tensor)
                total = mean if total is None else total + mean
        return total

    def leaves(self, obj: Any, prefix: str = "", _seen: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
        """Every tensor in a nested structure, with its dotted name; "" is the name of a bare tensor.

        Understands tuples, lists, mappings (ModelOutput included), named tuples, dataclasses and None.
        """
        if self.is_tensor(obj):
            yield prefix, obj
            return
        if obj is None or isinstance(obj, (str, bytes, int, float, np.ndarray)) or id(obj) in _seen:
            return
        children: list[tuple[str, Any]]
        if isinstance(obj, Mapping):
            children = [(str(key), value) for key, value in obj.items()]
        elif isinstance(obj, tuple) and hasattr(obj, "_fields"):
            children = list(zip(obj._fields, obj, strict=True))
        elif isinstance(obj, (tuple, list)):
            children = [(str(i), value) for i, value in enumerate(obj)]
        elif dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            children = [(f.name, getattr(obj, f.name, None)) for f in dataclasses.fields(obj)]
        else:
            return
        seen = (*_seen, id(obj))
        for key, value in children:
            yield from self.leaves(value, f"{prefix}.{key}" if prefix else key, seen)


_INPLACE = re.compile(r"__(set|del)item__|__i(add|sub|mul|matmul|truediv|div|floordiv|mod|pow|and|or|xor|[lr]shift)__")


@contextmanager
def _attributes_kept(modules: Sequence[Any]) -> Iterator[None]:
    """Put back what modules set on themselves, one level of lists and dicts included: caches, derived weights."""
    before: list[tuple[Any, Any]] = []
    for module in modules:
        own = vars(module)
        before.append((own, dict(own)))
        before += [(value, dict(value)) for value in own.values() if type(value) in (dict, OrderedDict)]
        before += [(value, list(value)) for value in own.values() if type(value) is list]
    try:
        yield
    finally:
        for holder, content in before:
            if isinstance(content, list):
                if [id(v) for v in holder] != [id(v) for v in content]:
                    holder[:] = content
                continue
            if [(k, id(v)) for k, v in holder.items()] != [(k, id(v)) for k, v in content.items()]:
                holder.clear()
                holder.update(content)


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every part changed, as far as `Adapter.leaves` looks into it; else the value itself.

    >>> rebuilt({"a": (1, [2])}, lambda v: rebuilt(v, lambda w: 3))
    {'a': (3, 3)}
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(v) for v in value))
    if isinstance(value, (tuple, list)):
        return list(map(change, value)) if isinstance(value, list) else tuple(map(change, value))
    if isinstance(value, slice):
        return slice(change(value.start), change(value.stop), change(value.step))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    if isinstance(value, Mapping):
        items = {k: change(v) for k, v in value.items()}
        try:
            return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
        except TypeError:  # one that is made in another way
            return items
    return value


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those public attributes of a layer that are plain values: its configuration, in JSON's types."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, (bool, int, float, str)) or value is None:
            found[name] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value):
            found[name] = list(value)
    return found
