"""Results as files: JSON with everything, CSV with a row a tensor. Written beside the target and moved into place."""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import OptionError, TraceWriteError
from ..result import rows

if TYPE_CHECKING:
    from ..explain.linting import LintReport
    from ..result import Result

#: The columns of the CSV: the keys of `twinscope.result.rows`.
COLUMNS = (
    *("step", "phase", "kind", "reference", "candidate", "nth", "how", "confidence"),
    *("judged", "rho", "rho64", "floor", "precision"),
    *("reference_slot", "candidate_slot", "reference_shape", "candidate_shape", "reference_dtype", "candidate_dtype"),
    *("verdict", "basis", "error", "limit", "max_abs", "mean_abs", "max_rel", "mean_rel", "rmse", "cosine", "within"),
    *("effective_bits", "note"),
)


def write_json(result: Result, path: str | os.PathLike[str]) -> Path:
    """Everything that a result says, in strict JSON (NaN and infinities are words).

    ::

        write_json(result, "report.json")
    """

    def write(file: TextIO) -> None:
        json.dump(result.to_dict(), file, indent=1, allow_nan=False, default=str)
        file.write("\n")

    return _write(Path(path), write)


def write_lint(report: LintReport, path: str | os.PathLike[str]) -> Path:
    """What `lint` found, as JSON."""
    return write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False, default=str), path)


def write_csv(result: Result, path: str | os.PathLike[str]) -> Path:
    """A row for each pair of tensors, with a header, also where there are none.

    ::

        write_csv(result, "pairs.csv")
    """

    def write(file: TextIO) -> None:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for pair in result.pairs:
            writer.writerows(_plain(row) for row in rows(pair))

    return _write(Path(path), write)


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """A text, with the newline at its end."""
    return _write(Path(path), lambda file: file.write(text.rstrip("\n") + "\n"))


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise now what writing to `path` would raise after the work is done."""
    target = Path(path)
    if os.path.isdir(target):
        raise OptionError(f"{target} is a directory", hint="name a file, such as report.json")
    if not os.path.isdir(target.parent):
        raise OptionError(f"{target}: there is no directory {target.parent}", hint="make it first, or name another")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: "x".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()}


def _write(path: Path, write: Callable[[TextIO], Any]) -> Path:
    check_target(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "x", encoding="utf-8", newline="") as file:
            write(file)
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise _refused(path, error) from error
        raise
    return path


def _refused(path: Path, error: OSError) -> TraceWriteError:
    return TraceWriteError(
        f"{path} cannot be written: {error.strerror or error}", hint="choose a place you can write to, with room"
    )
