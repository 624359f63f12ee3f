"""`create_model` and what it returns: a model with a report of what it did, lists of what to look at, and dumps."""

from __future__ import annotations

import os
import sys
from typing import Any

from twinscope import Watched, modules_of, snapshot

from ..console import say
from .choosing import Choice
from .dumps import write_params, write_report
from .problems import ArgumentError, one_of
from .special import registered_as
from .trees import full_path

LOG = "[AutoDiff] "

#: Layers that the frameworks build differently inside, and that are therefore compared as a whole.
_OPAQUE = frozenset("lstm gru rnn multihead_attention batch_norm batch_norm1d batch_norm2d batch_norm3d".split())


class DumpRoot:
    """Where dumps go that were given no place: ``padiff_dump`` beside the script, until somebody says otherwise."""

    def __init__(self) -> None:
        self._said: str | None = None

    def get(self) -> str:
        return self._said if self._said is not None else os.path.join(sys.path[0] or os.getcwd(), "padiff_dump")

    def set(self, path: str | os.PathLike[str]) -> None:
        self._said = os.fspath(path)


_ROOT = DumpRoot()


def set_dump_root_path(path: str | os.PathLike[str]) -> None:
    """Where proxies that are made from now on dump to when they are given no folder.

    ::

        set_dump_root_path("runs/padiff")
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{path!r} is not a path", hint='write set_dump_root_path("runs/padiff")')
    _ROOT.set(path)


def get_dump_root_path() -> str:
    """Where proxies dump to when they are given no folder."""
    return _ROOT.get()


def create_model(model: Any, name: str | None = None) -> ProxyModel:
    """A proxy of a torch, paddle or mindspore model: call it in the model's place, and dump what it did.

    ::

        model = create_model(SimpleLayer(), name="Simple")
        loss = loss_fn(model(inputs))
        model.backward(loss)
        model.try_dump(per_step=10)

    The model itself is ``.model``. A proxy is returned as it is.
    """
    if isinstance(model, ProxyModel):
        return model
    return ProxyModel(model, type(model).__name__ if name is None else name)


class ProxyModel:
    """A model with its report; made by `create_model`."""

    def __init__(self, model: Any, name: str) -> None:
        if not isinstance(name, str) or not name or name != os.path.basename(name) or name in (".", ".."):
            raise ArgumentError(f"name={name!r} cannot be the name of a folder", hint='write name="Simple"')
        self.model = model
        self.name = name
        #: how often `try_dump` was called
        self.step = 0
        self.choice = Choice(model)
        self._watched = self._watch()
        self._used = False
        self.framework = str(self._watched.adapter.name)
        self.dump_path = os.path.join(get_dump_root_path(), name)

    def _watch(self) -> Watched:
        return Watched(
            self.model,
            level="module" if os.environ.get("PADIFF_API_CHECK") == "OFF" else "op",
            keep="tensors",
            phases=["forward", "backward"],
            exclude=self.choice.left_out(),
            stacks=True,
        )

    @property
    def class_name(self) -> str:
        return type(self.model).__name__

    @property
    def fullname(self) -> str:
        return f"{self.framework}::{self.class_name}"

    def __repr__(self) -> str:
        return f"Model({self.fullname})"

    # -- running -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; what it does is added to the report."""
        self._used = True
        return self._watched(*args, **kwargs)

    def backward(self, loss: Any) -> dict[str, Any]:
        """The backward pass of a loss made from what the proxy returned; added to the report.

        MindSpore stores no gradients: there they are returned, by the paths of the parameters, and dumped from here.
        """
        return self._watched.backward(loss)

    def clear_report(self) -> None:
        """Forget what ran so far; without it, the report grows with every call."""
        self._watched.clear()
        self._used = False

    # -- choosing ------------------------------------------------------------------------------------------------------

    def update_black_list(self, layers: Any, mode: str = "all") -> None:
        """Leave layers out: themselves ("self"), what is in them ("sublayers"), or both ("all")."""
        self._change()
        self.choice.black(_natives(layers), mode)
        self._watched = self._watch()

    def update_white_list(self, layers: Any, mode: str = "self") -> None:
        """Look at these layers only, whatever the black list says."""
        self._change()
        self.choice.white(_natives(layers), mode)
        self._watched = self._watch()

    def update_black_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """Leave every layer of a class out; a tuple of classes is one of them."""
        self.update_black_list(self.choice.of_class(layer_class), mode)

    def update_white_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """Look at the layers of a class only; a tuple of classes is one of them."""
        self.update_white_list(self.choice.of_class(layer_class), mode)

    def set_layer_map(self, layers: Any) -> None:
        """These layers correspond to those that the other model's proxy is given, in this order; each is a whole."""
        self._change()
        self.choice.map_layers(_natives(layers))
        self._watched = self._watch()

    def auto_layer_map(self, model_place: str) -> bool:
        """Put into the layer map what the frameworks build differently inside, and what `add_special_init` knows.

        `model_place` says whether this is the "base" or the "raw" model. Prints what it found.
        """
        one_of(model_place, ("base", "raw"), "model_place")
        special = registered_as(model_place)
        found: list[str] = []
        layers = []
        say("Auto set layer_map start searching...", LOG)
        for info, module in modules_of(self.model):
            name = f"{self.framework}::{type(module).__name__}"
            inside = any(info.path.startswith(f"{path}.") or path == "" for path in found)
            if not inside and (info.kind in _OPAQUE or name in special):
                say(f"++++    {model_place}_model found `{name}` add to layer_map   ++++")
                found.append(info.path)
                layers.append(module)
        say()
        if layers:
            self.set_layer_map(layers)
        return True

    def _change(self) -> None:
        if self._used:
            raise ArgumentError(
                "the report has calls already, made by the lists as they were",
                hint="set lists and layer map before the first call, or after dump and clear_report()",
            )

    # -- dumping -------------------------------------------------------------------------------------------------------

    def try_dump(self, per_step: int = 1, dir_path: str | os.PathLike[str] | None = None) -> None:
        """Dump report and parameters every `per_step` calls of this; clear the report every time.

        `dir_path` is the folder for the json, as of the other dumps: what was dumped there before is replaced. Without
        it each dump has a folder of its own, ``step_N/rank_R``, in that of this model below the dump root.
        """
        if not isinstance(per_step, int) or isinstance(per_step, bool) or per_step < 1:
            raise ArgumentError(f"per_step={per_step!r} is not a whole number of at least 1", hint="try_dump(10)")
        self.step += 1
        if self.step % per_step == 0:
            own = os.path.join(self.dump_path, f"step_{self.step - 1}", f"rank_{_rank()}")
            folder = own if dir_path is None else _folder(dir_path)
            self.dump_params(folder)
            self.dump_report(folder)
        self.clear_report()

    def dump_report(self, dir_path: str | os.PathLike[str] | None = None) -> None:
        """What ran since the report was last cleared, forward and backward, to ``report.json`` in `dir_path`."""
        write_report(
            self._place(dir_path),
            self._watched.trace(),
            self._head(),
            self._route,
            self.choice.layer_map,
            lambda r: not (r.kind.value == "op" and (r.builtin or not self.choice.wants_functions(r.path))),
        )

    def dump_params(self, dir_path: str | os.PathLike[str] | None = None) -> None:
        """Weights and gradients, to ``params.json``."""
        self._dump_held("params", dir_path)

    def dump_weights(self, dir_path: str | os.PathLike[str] | None = None) -> None:
        """Weights, to ``weights.json``."""
        self._dump_held("weights", dir_path)

    def dump_grads(self, dir_path: str | os.PathLike[str] | None = None) -> None:
        """Gradients, to ``grads.json``."""
        self._dump_held("grads", dir_path)

    def _dump_held(self, name: str, dir_path: str | os.PathLike[str] | None) -> None:
        modules = {info.path: module for info, module in modules_of(self.model)}
        write_params(
            self._place(dir_path),
            name,
            snapshot(self.model, gradients=self._watched.gradients),
            self._head(),
            self._route,
            self.choice.layer_map,
            lambda path: self.choice.wants_functions(path),
            lambda path: _described(modules[path]),
        )

    def _head(self) -> dict[str, Any]:
        return {"model_name": self.name, "framework": self.framework}

    def _route(self, path: str) -> str:
        return full_path(self.name, path)

    def _place(self, dir_path: str | os.PathLike[str] | None) -> str:
        return os.path.join(self.dump_path, f"rank_{_rank()}") if dir_path is None else _folder(dir_path)


def native(model: Any) -> Any:
    """The model itself, where a proxy may have been handed in."""
    return model.model if isinstance(model, ProxyModel) else model


def _natives(layers: Any) -> Any:
    if isinstance(layers, ProxyModel):
        return layers.model
    return [native(layer) for layer in layers] if isinstance(layers, (list, tuple, set, frozenset)) else layers


def _folder(dir_path: Any) -> str:
    if not isinstance(dir_path, (str, os.PathLike)) or not os.fspath(dir_path):
        raise ArgumentError(f"dir_path={dir_path!r} is not a path", hint='write dir_path="dumps/simple"')
    return str(os.fspath(dir_path))


def _rank() -> int:
    """This process's number, as the launchers of all frameworks leave it in the environment."""
    for name in ("PADDLE_TRAINER_ID", "RANK", "RANK_ID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _described(module: Any) -> str:
    lines = repr(module).splitlines()
    return lines[0] if len(lines) == 1 else f"{type(module).__name__}()"
