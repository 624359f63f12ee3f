"""The command line: the only place that prints and exits.

Exit codes: 0 the same (or all is well), 1 different (or a problem was found, or something was left over), 2 it could
not be said.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import OptionError, TwinscopeError

if TYPE_CHECKING:
    from .doctor import Diagnosis, Package, Plugin
    from .hints import Hints
    from .result import Result

SAME, DIFFERENT, UNKNOWN, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="twinscope",
    help="The same network written twice: is it the same, where does it first differ, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict's line only.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a row for each tensor.")]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance. Without --atol, --rtol, --mode none is needed.")]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance.")]
Mode = Annotated[
    str | None,
    typer.Option(metavar="strict|mean", help="Hold the tolerance against each element, or the mean."),
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="REF=CAND|FILE",
        help="Pair modules by hand: paths, patterns (enc.{i}=blocks.{i}) or a JSON file; may be repeated.",
    ),
]
AlignMaps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FILE|REF=CAND",
        help="A map of the weights, as `twinscope map` writes it; or pair modules by hand, as in compare.",
    ),
]
HintsGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--hints",
        metavar="FILE|REF=CAND",
        help="Say which paths of modules or parameters belong together, or name a JSON file; may be repeated.",
    ),
]
Skips = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="PATTERN", help="Leave out the weights of these paths: 'aux.**'; may be repeated."),
]
GivenInputs = Annotated[
    str | None,
    typer.Option(
        "--inputs", metavar="FILE.npz|FILE.py:NAME", help="Inputs; else what REF's function returned as 'inputs'."
    ),
]
Confirm = Annotated[
    bool,
    typer.Option("--confirm", help="Run both networks in float64, too: noise collapses there, a bug stays."),
]
Phases = Annotated[
    list[str] | None,
    typer.Option("--phase", help="Only this phase: weight, forward, backward, gradient, buffer; may be repeated."),
]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        app(args=None if args is None else list(args), prog_name="twinscope")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else SAME
    return SAME


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        print(f"twinscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# -- commands --------------------------------------------------------------------------------------------------------


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="Trace of the network that is trusted.")],
    candidate: Annotated[Path, typer.Argument(metavar="CAND", help="Trace of the network in question.")],
    json_file: Json = None,
    csv_file: Csv = None,
    atol: Atol = None,
    rtol: Rtol = None,
    mode: Mode = None,
    mapping: Maps = None,
    phase: Phases = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare two traces, made by twinscope.capture on any machines. Exit code: 0 same, 1 different, 2 cannot say.

    Example:  twinscope compare runs/torch runs/paddle --csv pairs.csv
    """
    with _errors(debug):
        _check_files(json_file, csv_file)
        hints = _mapping(mapping)
        from .comparing import compare as run

        with _Bar() as bar:
            bar.stage("comparing")
            result = run(
                reference,
                candidate,
                atol=atol,
                rtol=rtol,
                mode=mode,
                mapping=hints,
                phases=phase or None,
                progress=bar.progress,
            )
        _finish(result, json_file, csv_file, quiet)


@app.command()
def align(
    reference: Annotated[str, typer.Argument(metavar="REF.py:BUILD", help="File and function that builds the model.")],
    candidate: Annotated[str, typer.Argument(metavar="CAND.py:BUILD", help="The same for the model in question.")],
    inputs: GivenInputs = None,
    ref_python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the reference's framework.")
    ] = None,
    cand_python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the candidate's framework.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the traces here.")] = None,
    no_backward: Annotated[bool, typer.Option("--no-backward", help="Run the forward pass only.")] = False,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Copy no weights into the candidate.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of both sides.")] = 0,
    confirm: Confirm = False,
    json_file: Json = None,
    csv_file: Csv = None,
    atol: Atol = None,
    rtol: Rtol = None,
    mode: Mode = None,
    mapping: AlignMaps = None,
    hints: HintsGiven = None,
    skip: Skips = None,
    phase: Phases = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build and run two models, each in a process of its own, with the same weights and inputs, and compare them.

    BUILD takes nothing and returns the model, (model, loss), or a dict with model, loss, inputs.

    Example:  twinscope align ref.py:build cand.py:build --inputs x.npz --cand-python envs/ms/bin/python
    """
    with _errors(debug):
        _check_files(json_file, csv_file)
        given, leave = _for_align(mapping, hints, skip)
        from .isolated import align_isolated

        with _Bar() as bar:
            result = align_isolated(
                reference,
                candidate,
                inputs=inputs,
                reference_python=ref_python,
                candidate_python=cand_python,
                out=out,
                weights=not no_weights,
                backward=not no_backward,
                seed=seed,
                confirm=confirm or None,
                atol=atol,
                rtol=rtol,
                mode=mode,
                mapping=given,
                skip=leave,
                phases=phase or None,
                stage=bar.stage,
                progress=bar.progress,
            )
        _finish(result, json_file, csv_file, quiet)


@app.command()
def judge(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace of the reference, with whole tensors.")],
    candidate: Annotated[
        str, typer.Option("--candidate", metavar="CAND.py:BUILD", help="File and function that builds the candidate.")
    ],
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="FILE.npz|FILE.py:NAME", help="Inputs; else those that the trace holds."),
    ] = None,
    no_backward: Annotated[bool, typer.Option("--no-backward", help="Judge the forward pass only.")] = False,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Copy no weights into the candidate.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the candidate's runs.")] = 0,
    json_file: Json = None,
    csv_file: Csv = None,
    mapping: AlignMaps = None,
    hints: HintsGiven = None,
    skip: Skips = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Judge a candidate by a recorded run of the reference, whose framework need not be here.

    The trace is made elsewhere, by twinscope.capture(..., keep="tensors"); weights and inputs come from it.
    Exit code: 0 same, 1 different, 2 cannot say.

    Example:  twinscope judge runs/ref --candidate cand.py:build
    """
    with _errors(debug):
        _check_files(json_file, csv_file)
        given_map, leave = _for_align(mapping, hints, skip)
        from .building import one_model
        from .offline import judge_trace
        from .store import Trace

        with _Bar() as bar, warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")  # of the frameworks, when they are imported
            recorded = Trace.open(trace)
            bar.stage("building the candidate")
            with one_model(candidate, inputs) as (built, given):
                bar.stage("judging its calls")
                result = judge_trace(
                    recorded,
                    built.model,
                    given,
                    weights=not no_weights,
                    mapping=given_map,
                    skip=leave,
                    backward=not no_backward,
                    seed=seed,
                    progress=bar.progress,
                )
        _finish(result, json_file, csv_file, quiet)


@app.command("lint")
def lint_command(
    reference: Annotated[str, typer.Argument(metavar="REF.py:BUILD", help="File and function that builds the model.")],
    candidate: Annotated[str, typer.Argument(metavar="CAND.py:BUILD", help="The same for the model in question.")],
    ref_python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the reference's framework.")
    ] = None,
    cand_python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the candidate's framework.")
    ] = None,
    json_file: Json = None,
    hints: HintsGiven = None,
    skip: Skips = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say which settings of matched layers differ; nothing is run. Exit code: 0 nothing differs, 1 something does.

    Each side is built in a process of its own. A difference that is only suspected counts; nothing to compare is 2.

    Example:  twinscope lint ref.py:build cand.py:build
    """
    with _errors(debug):
        _check_files(json_file)
        said = _hints(hints, skip)
        from .isolated import lint_isolated
        from .report.files import write_lint
        from .report.linted import render_lint

        with _Bar() as bar:
            report = lint_isolated(
                reference,
                candidate,
                reference_python=ref_python,
                candidate_python=cand_python,
                hints=said,
                stage=bar.stage,
            )
        print(render_lint(report, brief=quiet, **_look()))
        if json_file is not None:
            write_lint(report, json_file)
        raise typer.Exit(DIFFERENT if report.findings else SAME if report.compared else UNKNOWN)


@app.command("map")
def map_command(
    reference: Annotated[str, typer.Argument(metavar="REF.py:BUILD", help="File and function that builds the model.")],
    candidate: Annotated[str, typer.Argument(metavar="CAND.py:BUILD", help="The same for the model in question.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the map here.")] = None,
    inputs: GivenInputs = None,
    hints: HintsGiven = None,
    skip: Skips = None,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find out which weights of REF become which of CAND, and how. Exit code: 0 all of them, 1 some are left to decide.

    Both models are built in this process. With inputs both run, which proves the map.

    Example:  twinscope map ref.py:build cand.py:build --inputs x.npz -o map.json
    """
    with _errors(debug):
        _check_files(out)
        said = _hints(hints, skip)
        from .building import two_models
        from .report.mapping import render_map
        from .weights.mapping import map_weights

        with _Bar() as bar, warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")  # of the frameworks, when they are imported
            bar.stage("building the models")
            with two_models(reference, candidate, inputs) as (first, second, given):
                bar.stage("mapping the weights")
                found = map_weights(first, second, given, hints=said, seed=seed)
        print(render_map(found, brief=quiet, **_look()))
        if out is not None:
            found.save(out)
        raise typer.Exit(SAME if found.complete else DIFFERENT)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Checkpoint of one model.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Checkpoint of its twin; the extension says which.")],
    mapping: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="The map that `twinscope map -o FILE` wrote.")
    ] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="No map: another kind of file, same names, same layouts.")] = (
        False
    ),
    reverse: Annotated[
        bool | None,
        typer.Option(
            "--reverse/--forward",
            show_default=False,
            help="From candidate to reference. Else the names in SOURCE tell.",
        ),
    ] = None,
    no_strict: Annotated[bool, typer.Option("--no-strict", help="Write what fits, say what does not.")] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Run what a .pdparams says. Of people whom you trust, only.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace TARGET if it is there.")] = False,
    debug: Debug = False,
) -> None:
    """Write the weights of a checkpoint as one of the twin model. Needs no framework. Exit code: 1 some were left out.

    Example:  twinscope convert model.pth model.pdparams --map map.json
    """
    with _errors(debug):
        if (mapping is None) is not as_is:
            raise OptionError(
                "a conversion needs --map FILE" if mapping is None else "--map and --as-is exclude each other",
                hint="--as-is keeps names and layouts, which suits two models of one framework only",
            )
        from .weights.convert import convert_checkpoint

        report = convert_checkpoint(
            source,
            target,
            mapping,
            reverse=reverse,
            strict=not no_strict,
            allow_pickle=allow_pickle,
            overwrite=overwrite,
        )
        print(report)
        raise typer.Exit(SAME if report else DIFFERENT)


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace directory.")],
    step: Annotated[int | None, typer.Option(help="This step only.")] = None,
    phase: Annotated[str, typer.Option(help="forward, backward, weight, gradient or buffer.")] = "forward",
    path: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Modules under these paths only: 'encoder.*.attn', 'encoder.**'."),
    ] = None,
    ops: Annotated[bool, typer.Option("--ops", help="Show ops, too.")] = False,
    slots: Annotated[bool, typer.Option("--slots", help="A line for each tensor, inputs included.")] = False,
    unfold: Annotated[bool, typer.Option("--unfold", help="Show what is inside the framework's own layers.")] = False,
    debug: Debug = False,
) -> None:
    """Show what a trace holds: the tree of calls with shapes, statistics and source lines.

    Example:  twinscope show runs/torch --path 'encoder.**' --ops --slots
    """
    with _errors(debug):
        from .report.listing import render_trace
        from .store import Trace

        print(
            render_trace(
                Trace.open(trace), step=step, phase=phase, path=path, ops=ops, slots=slots, fold=not unfold, **_look()
            )
        )


@app.command()
def doctor(
    try_imports: Annotated[
        bool, typer.Option("--import", help="Import each framework, in a process of its own, and make a tensor.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Say which frameworks are installed and whether they go together. Exit code: 0 fine, 1 a problem was found.

    Example:  twinscope doctor --import
    """
    with _errors(debug):
        from .doctor import examine

        with _Bar() as bar:
            if try_imports:
                bar.stage("importing the frameworks")
            diagnosis = examine(try_imports=try_imports)
        if as_json:
            print(json.dumps(diagnosis.to_dict(), indent=1))
        else:
            print(_diagnosis(diagnosis))
        raise typer.Exit(SAME if diagnosis else DIFFERENT)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the networks and the reports go.")] = Path(
        "twinscope-demo"
    ),
    debug: Debug = False,
) -> None:
    """Align a network with its port, then with a port that has a bug, and check that the bug is found where it is.

    Example:  twinscope demo --out my-demo
    """
    with _errors(debug):
        from .demo import run
        from .report.terminal import render

        with _Bar() as bar:
            outcome = run(out, stage=bar.stage)
        for line in outcome.told:
            print(line)
        print()
        print(render(outcome.broken, **_look()))
        print()
        print(f"{outcome.says}\nreports and networks: {outcome.place}\nagain, by hand: {outcome.command}")
        raise typer.Exit(SAME if outcome.passed else DIFFERENT)


# -- what they share -------------------------------------------------------------------------------------------------


@contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """One clear message instead of a traceback, and never exit code 1, which means "different"."""
    try:
        yield
        sys.stdout.flush()
    except TwinscopeError as error:
        _complain(error.message, error.hint, debug)
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # whoever read the output has seen enough (`| head`); the interpreter must not complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(SAME) from None
    except Exception as error:  # noqa: BLE001 - whatever went wrong, it must not look like a verdict
        hint = "this is a fault of twinscope; please report it" + ("" if debug else " with what --debug prints")
        _complain(f"{type(error).__name__}: {error}", hint, debug)


def _complain(message: str, hint: str | None, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint is not None:
        print(f"Hint: {hint}", file=sys.stderr)
    raise typer.Exit(UNKNOWN)


def _look() -> dict[str, Any]:
    """How standard output wants its text."""
    from .report.terminal import supports_color, supports_unicode

    return {"color": supports_color(sys.stdout), "unicode": supports_unicode(sys.stdout)}


def _check_files(*files: Path | None) -> None:
    """Before the work, not after it."""
    from .report.files import check_target

    for file in files:
        if file is not None:
            check_target(file)


def _finish(result: Result, json_file: Path | None, csv_file: Path | None, quiet: bool) -> None:
    from .records import Overall
    from .report.files import write_csv, write_json
    from .report.terminal import render

    text = render(result, **_look())
    print(text.split("\n\n", 1)[0] if quiet else text)
    if quiet and result.first_divergence is not None:
        print(result.first_divergence)
    if json_file is not None:
        write_json(result, json_file)
    if csv_file is not None:
        write_csv(result, csv_file)
    if result.verdict is Overall.UNDECIDED:
        why = "; ".join(result.notes[:3]) or "not everything could be compared"
        print(f"undecided: {why}", file=sys.stderr)
    raise typer.Exit({Overall.SAME: SAME, Overall.DIFFERENT: DIFFERENT}.get(result.verdict, UNKNOWN))


def _mapping(given: Sequence[str] | None, option: str = "--map") -> list[tuple[str, str]] | None:
    """Pairs of paths from ``REF=CAND`` and from JSON files: an object, or a list of pairs."""
    if not given:
        return None
    return [pair for item in given for pair in _pair(item) or _pairs_of_file(item, option)]


def _pair(item: str) -> list[tuple[str, str]]:
    left, equals, right = item.partition("=")
    return [(left.strip(), right.strip())] if equals and not Path(item).is_file() else []


def _pairs_of_file(item: str, option: str) -> list[tuple[str, str]]:
    try:
        with open(item, encoding="utf-8") as file:
            read = json.load(file)
    except OSError as error:
        raise OptionError(
            f"{option} {item}: {error.strerror}", hint=f"write {option} REF=CAND, or name a JSON file"
        ) from error
    except ValueError as error:
        raise OptionError(f"{option} {item} is not JSON: {error}", hint='write {"encoder.0": "blocks.0"}') from error
    if isinstance(read, dict) and "twinscope_map" in read:
        raise OptionError(
            f"{option} {item} is a map of weights, which is of no use here",
            hint="pair modules: --map encoder.0=blocks.0",
        )
    pairs = list(read.items()) if isinstance(read, dict) else read
    if not isinstance(pairs, list) or not all(
        isinstance(p, (list, tuple)) and len(p) == 2 and all(isinstance(x, str) for x in p) for p in pairs
    ):
        raise OptionError(f"{option} {item} does not hold pairs of paths", hint='write {"encoder.0": "blocks.0"}')
    return [(p[0], p[1]) for p in pairs]


def _hints(given: Sequence[str] | None, skip: Sequence[str] | None) -> Hints:
    """What the user says of the weights, from ``REF=CAND``, hint files and ``--skip``, all of it together."""
    from .hints import Hints

    said = Hints.parse(None, skip)
    for item in given or ():
        more = Hints.parse(_pair(item) or item)
        sides = [(*old, *new) for old, new in zip(said.skip, more.skip, strict=True)]
        said = Hints((*said.pairs, *more.pairs), (sides[0], sides[1]))
    return said


def _for_align(
    maps: Sequence[str] | None, given: Sequence[str] | None, skip: Sequence[str] | None
) -> tuple[str | list[tuple[str, str]] | None, dict[str, list[str]] | None]:
    """`mapping` and `skip` of `align_isolated`: a saved map, or all that was said by hand."""
    from .weights.weightmap import WeightMap

    saved = [item for item in maps or () if WeightMap.is_saved(item)]
    if saved:
        if len(maps or ()) > 1 or given or skip:
            raise OptionError(
                f"--map {saved[0]} is a whole map of the weights, and something else was said beside it",
                hint="give it alone, or hand the hints to `twinscope map`",
            )
        return saved[0], None
    said = _hints(given, skip)
    pairs = [*(_mapping(maps) or ()), *said.pairs]
    reference, candidate = map(list, said.skip)
    return pairs or None, {"reference": reference, "candidate": candidate} if reference or candidate else None


class _Bar:
    """Progress on standard error, where that is a terminal: what is being done, and how far it is."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, total=None, completed=0)

    @property
    def progress(self) -> Callable[[int, int], None] | None:
        return None if self._bar is None else self._advance

    def _advance(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


def _diagnosis(diagnosis: Diagnosis) -> str:
    from .report.terminal import Page

    look = _look()
    page = Page.make(None, look["color"], look["unicode"])
    facts = diagnosis.facts
    page.item("twinscope", facts.twinscope, 0)
    page.item("python", f"{'.'.join(map(str, facts.python))}  {sys.executable}", 0)
    page.item("numpy", facts.numpy or "not installed", 0)
    page.item("scipy", facts.scipy or "not installed", 0)
    for package in facts.frameworks:
        page.item(package.name, _package(package), 0)
    for plugin in facts.plugins:
        page.item(plugin.name, f"{_works(plugin)}{plugin.place}, from {plugin.provider}", 0)
    for title, wanted, style in (("Problems", True, "bold red"), ("Good to know", False, "")):
        advice = [a for a in diagnosis.advice if a.problem is wanted]
        if advice:
            page.heading(title)
        for item in advice:
            page.add(page.part(item.message, style), "  - ")
            page.add(page.part(f"fix: {item.fix}" if wanted else item.fix), "      ")
    page.blank()
    page.add("All is well." if diagnosis else "Something is in the way.")
    return page.text()


def _package(package: Package) -> str:
    if not package.found:
        return "not installed" if package.version is None else f"{package.version}, but nothing to import"
    return f"{_works(package)}{package.version or 'unknown version'}"


def _works(package: Package | Plugin) -> str:
    return {None: "", True: "works: ", False: "FAILS: "}[package.works]


if __name__ == "__main__":
    sys.exit(main())
