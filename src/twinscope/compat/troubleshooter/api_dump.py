"""`fix_random`, and the dumps of `migrator`: api_dump_init, api_dump_start, api_dump_stop."""

from __future__ import annotations

import atexit
import os
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import twinscope

from ..console import say
from .dumping import CATEGORIES, TYPES, DumpWriter, Files, Wish, scope_chooser
from .names import Scope
from .problems import ArgumentError, DumpError

_RANKS = {"torch": "RANK", "mindspore": "RANK_ID", "paddle": "PADDLE_TRAINER_ID"}
_CATEGORIES = ["max", "min", "l2norm"]
_SAY = "[*User Attention*] "


def fix_random(seed: int = 16) -> None:
    """Seed Python, numpy and every framework that is loaded: ``ts.fix_random()``.

    With torch, cudnn is told to be deterministic.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 32:
        raise ArgumentError(f"seed={seed!r} is not a whole number from 0 to 2**32 - 1", hint="write fix_random(16)")
    twinscope.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)


@dataclass(slots=True)
class _Running:
    """One stretch between start and stop."""

    stack: ExitStack
    capture: Any
    scope: Scope
    writer: DumpWriter | None = None


class _Session:
    """What `api_dump_init` was told, and what is running."""

    def __init__(self) -> None:
        self.net: Any = None
        self.files: Files | None = None
        self.output = ""
        self.backward = False
        self.running: _Running | None = None
        self._registered = False

    def init(self, net: Any, output_path: Any, retain_backward: bool) -> None:
        framework = twinscope.capture(net).adapter.name
        self.end()
        rank = os.environ.get(_RANKS.get(framework, "RANK"), "0")
        if not rank.isdigit():
            raise ArgumentError(
                f"the environment has {_RANKS[framework]}={rank!r}, which is no rank", hint="use 0, 1, ..."
            )
        self.output = os.path.realpath(output_path)
        self.files = Files(Path(self.output) / f"rank{int(rank)}", framework)
        self.net, self.backward = net, retain_backward

    def start(self, mode: Any, scope: Any, wish: Wish) -> None:
        if self.files is None:
            raise DumpError("api_dump_start() before api_dump_init()", hint="call ts.migrator.api_dump_init(net) first")
        files = self.files
        wanted = Scope(files.framework, mode, scope)
        self.end()
        files.begin()
        names: dict[int, str] = {}
        phases = ["forward", *(["backward", "gradient"] if wish.backward else [])]
        with ExitStack() as stack:
            stack.enter_context(twinscope.no_dropout(self.net))
            running = _Running(stack, None, wanted)

            def writer(manifest: Any) -> DumpWriter:
                running.writer = DumpWriter(files, wish, names, manifest)
                return running.writer

            running.capture = twinscope.capture(
                self.net,
                choose=scope_chooser(files, wanted, names),
                writer=writer,
                failed=self.give_up,
                keep=wish.keep,
                backward=wish.backward,
                phases=phases,
                weights="used",
                layer_ops=False,
                stacks=True,
            )
            stack.enter_context(running.capture)
            running.stack = stack.pop_all()
        files.stretches += 1
        self.running = running
        if not self._registered:
            atexit.register(self.end)
            self._registered = True

    def end(self) -> _Running | None:
        """Take everything off the network, whatever ran; what was recorded is on the disk afterwards."""
        running, self.running = self.running, None
        if running is not None:
            running.stack.close()
        return running

    def give_up(self) -> None:
        """The network raised: nothing stays on it."""
        if self.end() is not None:
            say("API dump has been stopped: the network raised an exception.", _SAY)


_SESSION = _Session()


def api_dump_init(
    net: Any,
    output_path: str | os.PathLike[str] = "ts_api_dump",
    *,
    retain_backward: bool = False,
) -> None:
    """Say which network is to be dumped, and where to: ``ts.migrator.api_dump_init(net, output_path="torch_dump")``.

    `retain_backward`: the gradients of the calls' outputs too. The network is not touched before `api_dump_start`.
    """
    if not isinstance(retain_backward, bool):
        raise ArgumentError(
            f"retain_backward={retain_backward!r} is neither True nor False", hint="write True or False"
        )
    if not isinstance(output_path, (str, os.PathLike)):
        raise ArgumentError(f"output_path={output_path!r} is not a path", hint='write output_path="ts_api_dump"')
    _SESSION.init(net, output_path, retain_backward)
    say("For precision comparison, the probability p in the dropout method is set to 0.", _SAY)
    say("Please disable the shuffle function of the dataset before running the program.", _SAY)


def api_dump_start(
    mode: str = "all",
    scope: list[str] | None = None,
    dump_type: str = "all",
    filter_data: bool = True,
    filter_stack: bool = True,
    overflow_check: bool = False,
    statistic_category: Any = _CATEGORIES,
) -> None:
    """Record every API call of the network from here on: ``ts.migrator.api_dump_start()``.

    `mode` and `scope`: "all"; "list" of names such as NN_Conv2d_0; "range" from one name to another; "api_list" of
    parts of names. `dump_type`: "all", "statistics", "stack" or "npy". `filter_data` leaves out what is no tensor of
    floating numbers; `filter_stack` leaves frames of the framework out of the stacks; `overflow_check` leaves out calls
    whose results are finite. `statistic_category`: of "max", "min", "avg", "l2norm", "md5".
    """
    if dump_type not in TYPES:
        raise ArgumentError(f"dump_type={dump_type!r} is not known", hint=f"use one of {', '.join(map(repr, TYPES))}")
    for option, value in (
        ("filter_data", filter_data),
        ("filter_stack", filter_stack),
        ("overflow_check", overflow_check),
    ):
        if not isinstance(value, bool):
            raise ArgumentError(f"{option}={value!r} is neither True nor False", hint=f"write {option}=True")
    categories = () if statistic_category is None else statistic_category
    if not isinstance(categories, (list, tuple)) or not all(c in CATEGORIES for c in categories):
        raise ArgumentError(
            f"statistic_category={statistic_category!r} is not known",
            hint=f"use a list of {', '.join(map(repr, CATEGORIES))}",
        )
    wish = Wish(dump_type, filter_data, filter_stack, overflow_check, frozenset(categories), _SESSION.backward)
    _SESSION.start(mode, scope, wish)
    say(f"API dump has started. Dump data will be saved to {_SESSION.output}. ", _SAY)


def api_dump_stop() -> None:
    """Stop recording, and take everything off the network: ``ts.migrator.api_dump_stop()``."""
    files = _SESSION.files
    if files is None:
        raise DumpError("api_dump_stop() before api_dump_init()", hint="call ts.migrator.api_dump_init(net) first")
    running = _SESSION.end()
    if files.written:
        say(f"API dump has been stopped. Dump data has been saved to {_SESSION.output}.", _SAY)
    else:
        say("API dump has been stopped, but no data has been saved. Please check the dump scope!", _SAY)
    if running is None:
        return
    if running.capture.error is not None:
        raise running.capture.error
    if running.writer is not None and running.writer.dropping:
        warnings.warn(
            f"dropout was not off in {', '.join(running.writer.dropping[:5])}: what went in did not come out",
            twinscope.TwinscopeWarning,
            stacklevel=2,
        )
    running.scope.check(files.ran)
