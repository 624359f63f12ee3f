"""Models from files: what ``FILE:NAME`` stands for on the command line and in `align_isolated`.

NAME is a model, or a function that takes nothing and returns

* the model, or
* ``(model, loss)``, where `loss` is a function of the model's output, or
* a dict with ``model`` and, as wanted, ``loss`` and ``inputs``.

What the user's code raises is a `SideError` that shows the user's frames and not Twinscope's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import patterns
from .adapters._registry import adapter_for, by_name, package_of
from .adapters.base import Adapter
from .errors import OptionError, SideError, TwinscopeError
from .running import InputPair, Inputs

_KEYS = ("model", "loss", "inputs")


@contextmanager
def two_models(
    reference: str, candidate: str, inputs: str | os.PathLike[str] | None = None
) -> Iterator[tuple[Any, Any, Any]]:
    """Both models built in this process, and their inputs with numpy at the leaves: None where there are none.

    ::

        with two_models("ref.py:build", "cand.py:build", "x.npz") as (first, second, given):
            mapping = map_weights(first, second, given)

    `inputs` is a path ending in .npz or .npy, or ``FILE:NAME``; without it, what the reference's function returned as
    its inputs. While the context lasts the files' directories are on `sys.path`, for what the models import later.
    """
    sides = [("reference", *spec_of(reference, "reference", "build"))]
    sides.append(("candidate", *spec_of(candidate, "candidate", "build")))
    source = _source(inputs)
    before = list(sys.path)
    doing = ""
    try:
        _mindspore_first([file for _, file, _ in sides])
        loaded: dict[Path, ModuleType] = {}
        built = []
        for role, file, name in sides:
            sys.path[:] = [str(file.parent), *(p for p in sys.path if p != str(file.parent))]
            sys.path.extend([] if os.getcwd() in sys.path else [os.getcwd()])
            doing = f"{role} {file.name}:{name}: loading {file.name}"
            module = loaded[file] if file in loaded else loaded.setdefault(file, load(file))
            doing = f"{role} {file.name}:{name}: calling {name}()"
            built.append(built_by(attribute(module, file, name), f"{file.name}:{name}"))
        doing = "making the inputs"
        adapter = adapter_for(built[0].model)
        if source is None:
            given = built[0].inputs
        else:
            given = source if isinstance(source, Inputs) else inputs_in(*source)
        plain = None if given is None else _numpy(given, adapter)
        doing = "running the models"
        yield built[0].model, built[1].model, plain
    except TwinscopeError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and "mindspore" in str(error) and "paddle" in sys.modules:
            by_name("mindspore")  # says that it cannot come second
        what = f"{type(error).__qualname__}: {error}".rstrip(": ")
        raise SideError(f"{doing} raised {what}\n\n{users_traceback(error).rstrip()}", hint=advice(error)) from error
    finally:
        sys.path[:] = before


@contextmanager
def one_model(candidate: str, inputs: str | os.PathLike[str] | None = None) -> Iterator[tuple[Built, Any]]:
    """The candidate built in this process, and the inputs that were named: None where none were.

    ::

        with one_model("cand.py:build") as (built, given):
            result = judge_trace("runs/ref", built.model, given, loss=built.loss)
    """
    file, name = spec_of(candidate, "candidate", "build")
    source = _source(inputs)
    before = list(sys.path)
    doing = f"loading {file.name}"
    try:
        sys.path[:] = [str(file.parent), *(p for p in sys.path if p != str(file.parent))]
        sys.path.extend([] if os.getcwd() in sys.path else [os.getcwd()])
        target = attribute(load(file), file, name)
        doing = f"calling {name}()"
        built = built_by(target, f"{file.name}:{name}")
        doing = "making the inputs"
        given = source if source is None or isinstance(source, Inputs) else inputs_in(*source)
        doing = "running the model"
        yield built, given
    except TwinscopeError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__qualname__}: {error}".rstrip(": ")
        message = f"candidate {file.name}:{name}: {doing} raised {what}\n\n{users_traceback(error).rstrip()}"
        raise SideError(message, hint=advice(error)) from error
    finally:
        sys.path[:] = before


def _mindspore_first(files: list[Path]) -> None:
    """Where the files say that they want both, in the only order in which the two can be imported."""
    texts = [file.read_bytes() for file in files]
    wants = {n for n in (b"mindspore", b"paddle") for t in texts if re.search(rb"(?m)^\s*(import|from)\s+%b\b" % n, t)}
    if len(wants) == 2 and "paddle" not in sys.modules and importlib.util.find_spec("mindspore") is not None:
        by_name("mindspore")


def _source(inputs: str | os.PathLike[str] | None) -> Inputs | tuple[Path, str] | None:
    if inputs is None:
        return None
    text = os.fspath(inputs)
    return from_numpy_file(Path(text)) if text.endswith((".npz", ".npy")) else spec_of(text, "inputs", "inputs")


def _numpy(value: Any, adapter: Adapter) -> Any:
    """Inputs with numpy in place of the reference's tensors, for the candidate is given them too."""
    if isinstance(value, InputPair):
        return InputPair(_numpy(value.reference, adapter), value.candidate)
    if isinstance(value, Inputs):
        return Inputs(*(_numpy(v, adapter) for v in value.args), **_numpy(value.kwargs, adapter))
    if adapter.is_tensor(value):
        return np.array(adapter.to_numpy(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_numpy(v, adapter) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_numpy(v, adapter) for v in value)
    if isinstance(value, Mapping):
        return {k: _numpy(v, adapter) for k, v in value.items()}
    return value


# -- one side --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Built:
    """What a user's function returned."""

    model: Any
    loss: Callable[[Any], Any] | None = None
    inputs: Any = None


def spec_of(text: str, option: str, default: str) -> tuple[Path, str]:
    """``FILE:NAME`` taken apart; NAME may be left out."""
    if not isinstance(text, (str, os.PathLike)):
        raise OptionError(
            f"{option}={type(text).__name__} is not a file and a name",
            hint=f'write "file.py:{default}"; models that live in this process are for twinscope.align',
        )
    whole = os.fspath(text)
    file, colon, name = whole.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = whole, default
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise OptionError(f"{option}: there is no file {file}", hint=f"write FILE:NAME, such as model.py:{default}")
    return path, name


def load(file: Path) -> ModuleType:
    """The user's file as a module, named after the file unless that name is taken."""
    name = file.stem if file.stem not in sys.modules and file.stem.isidentifier() else f"{file.stem}_"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise OptionError(f"{file.name} is not a Python file", hint="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def attribute(module: ModuleType, file: Path, name: str) -> Any:
    """What the user's file calls by that name."""
    try:
        return getattr(module, name)
    except AttributeError:
        legal = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise OptionError(
            f"{file.name} has no {name}",
            hint=patterns.did_you_mean(name, legal) if legal else f"define a function {name}() that returns the model",
        ) from None


def built_by(target: Any, spec: str) -> Built:
    """What the user's function returned, checked; `target` may be the model itself."""
    hint = "return the model, (model, loss), or a dict with 'model' and, as wanted, 'loss' and 'inputs'"
    if package_of(target) is not None:
        return Built(target)
    if not callable(target):
        raise OptionError(f"{spec} is a {type(target).__name__}, neither a function nor a model", hint=hint)
    found = target()
    if isinstance(found, Mapping):
        for key in found:
            if key not in _KEYS:
                raise OptionError(f"{spec} returned a dict with {key!r}", hint=patterns.did_you_mean(str(key), _KEYS))
        if "model" not in found:
            raise OptionError(f"{spec} returned a dict without 'model'", hint=hint)
        built = Built(**found)
    elif isinstance(found, tuple):
        if len(found) != 2:
            raise OptionError(f"{spec} returned a tuple of {len(found)}", hint=hint)
        built = Built(*found)
    elif found is None:
        raise OptionError(f"{spec} returned None", hint=hint)
    else:
        built = Built(found)
    if built.loss is not None and not callable(built.loss):
        raise OptionError(f"{spec}: the loss is a {type(built.loss).__name__}, not a function", hint=hint)
    return built


def inputs_in(file: Path, name: str) -> Any:
    """The inputs that a file of the user's holds, or a function there makes."""
    loaded = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(file)), None)
    found = attribute(loaded or load(file), file, name)
    return found() if callable(found) and not isinstance(found, (Inputs, InputPair)) else found


def users_traceback(error: BaseException) -> str:
    """The traceback without Twinscope's frames and those that load the file."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    shown = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = shown
    while link is not None:
        link.stack = traceback.StackSummary.from_list(
            [f for f in link.stack if not f.filename.startswith((package, "<frozen importlib"))]
        )
        link = link.__cause__ or link.__context__
    return "".join(shown.format())


def advice(error: BaseException) -> str:
    """What to do about an error of the user's code."""
    if isinstance(error, ModuleNotFoundError):
        return f"{sys.executable} has no {error.name}; name another interpreter, or install it there"
    return "this is an error in the code of that side, or in how it is called; the traceback says where"


def from_numpy_file(path: Path) -> Inputs:
    """The arrays of an .npz or .npy file as arguments."""
    hint = 'write it with np.savez("inputs.npz", x) or np.savez("inputs.npz", ids=ids, mask=mask)'
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return Inputs(found)
        with found:
            arrays = {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise OptionError(f"inputs: there is no file {path}", hint=hint) from None
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise OptionError(f"inputs: {path} cannot be read: {error}", hint=hint) from error
    positions = {name: name.removeprefix("arr_") for name in arrays}
    positional = sorted((n for n, p in positions.items() if p.isdecimal()), key=lambda n: int(positions[n]))
    return Inputs(*(arrays[n] for n in positional), **{n: a for n, a in arrays.items() if n not in positional})
