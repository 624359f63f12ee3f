"""PortBugs: mistakes that people make when porting a network, and who finds them.

    python benchmarks/portbugs/run.py [--pair PAIR] [--only PATTERN] [--judge NAME]... [--verbose]
        [--json FILE [--resume]] [--check]

PaDiff 0.2 judges the pairs that it knows, in an environment of its own (`make originals`): its import name is one of
ours here. Each framework pair has a process of its own. What a case raises, or a crash of that process, costs that case
alone. `--check` runs no judge: it shows that each planted case changes numbers by more than float64's noise, and each
benign one by no more.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cases import PAIRS, Case, Expected, cases  # noqa: E402

#: Judges of other packages: by name, the environment that holds it and the pairs that it knows.
_PADIFF = (HERE.parent / ".originals" / "bin" / "python", ("torch-paddle",))
ORIGINALS = {"PaDiff 0.2": _PADIFF, "PaDiff 0.2, strict 1e-4": _PADIFF}
#: In the order in which the frameworks must be imported.
IMPORTS = {"torch-paddle": ("torch", "paddle"), "torch-mindspore": ("torch", "mindspore")}
#: A mark before each line that a worker sends: frameworks print what they like.
MARK = "portbugs> "


def main() -> int:
    options = _options().parse_args()
    if options.worker:
        _work(options)
        return 0
    rows: list[dict[str, Any]] = []
    if options.resume and Path(options.json or "").is_file():
        rows = json.loads(Path(options.json).read_text())
    done = {(row["pair"], row["name"]) for row in rows}
    for pair in [options.pair] if options.pair else PAIRS:
        names = [c.name for c in _chosen(options) if c.pair == pair and (pair, c.name) not in done]
        for row in _all_results(pair, names, options):
            rows = [r for r in rows if (r["pair"], r["name"]) != (pair, row["name"])] + [row]
            if options.verbose or options.check:
                print(_line(row, options.check), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        print(f"no case is called like {options.only!r}", file=sys.stderr)
        return 2
    if options.check:
        wrong = [row for row in rows if row.get("wrong")]
        print(f"{len(rows)} cases, {len(wrong)} wrong")
        return int(bool(wrong))
    print(_table(rows))
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="mistakes of porting, and who finds them")
    parser.add_argument("--pair", choices=PAIRS)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="a case's name, * and ? allowed")
    parser.add_argument("--judge", metavar="NAME", action="append", help="only this judge; more than once for more")
    parser.add_argument("--verbose", action="store_true", help="a line a case")
    parser.add_argument("--json", metavar="FILE", help="also write every opinion here")
    parser.add_argument("--resume", action="store_true", help="go on after the cases that FILE holds already")
    parser.add_argument("--check", action="store_true", help="test the cases instead of the judges")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="seconds that one case may take")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    return parser


def _chosen(options: argparse.Namespace) -> list[Case]:
    pattern = options.only
    return [c for c in cases() if fnmatch.fnmatchcase(c.name, pattern) or fnmatch.fnmatchcase(c.name, f"*{pattern}*")]


def _all_results(pair: str, names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row a case; then once more those that a judge of another package has an opinion of."""
    rows = {}
    own = [name for name in options.judge or () if name not in ORIGINALS]
    if own or not options.judge:
        for row in _results(pair, names, argparse.Namespace(**{**vars(options), "judge": own})):
            rows[row["name"]] = row
            yield row
    for judge, (python, pairs) in ORIGINALS.items():
        if pair not in pairs or options.check or (options.judge and judge not in options.judge):
            continue
        if not python.is_file():
            print(f"{judge} is not set up: make originals", file=sys.stderr)
            continue
        for row in _results(pair, names, argparse.Namespace(**{**vars(options), "judge": [judge]}), python):
            known = rows.get(row["name"])
            if known is not None and not known.get("died"):
                said = row.get("opinions", {judge: {"verdict": "failed", "note": row.get("died", "")}})
                row = known | {"opinions": known["opinions"] | said}
            rows[row["name"]] = row
            yield row


def _results(
    pair: str, names: list[str], options: argparse.Namespace, python: Path | None = None
) -> Iterator[dict[str, Any]]:
    """A row a case; after a crash another process goes on with the next."""
    left = list(names)
    known = {(c.pair, c.name): c for c in cases()}
    while left:
        for row in _one_process(pair, left, options, python):
            left.remove(row["name"])
            yield row
        if left:
            yield _about(known[pair, left[0]]) | {"died": "the process ended, or took too long"}
            del left[0]


def _one_process(
    pair: str, names: list[str], options: argparse.Namespace, python: Path | None
) -> Iterator[dict[str, Any]]:
    words = [str(python or sys.executable), __file__, "--pair", pair, "--worker", "-"]
    words += [word for judge in options.judge or () for word in ("--judge", judge)]
    words += ["--check"] if options.check else []
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if python is not None:
        environment.pop("PYTHONPATH", None)
    away = tempfile.TemporaryDirectory()  # where what other packages write goes
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=away.name,
    )
    assert process.stdin is not None and process.stdout is not None
    stdout = process.stdout
    process.stdin.write(json.dumps(names))
    process.stdin.close()
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    waited = options.timeout + 60  # the frameworks are imported first
    try:
        while True:
            line = lines.get(timeout=waited)
            if line is None:
                return
            if line.startswith(MARK):
                waited = options.timeout
                yield json.loads(line[len(MARK) :])
    except queue.Empty:
        return
    finally:
        process.kill()
        process.wait()
        away.cleanup()


def _work(options: argparse.Namespace) -> None:
    names = json.loads(sys.stdin.read())
    warnings.filterwarnings("ignore")
    for framework in IMPORTS[options.pair]:
        __import__(framework)
    if set(options.judge or ()) & set(ORIGINALS):
        import padiff  # noqa: F401  # the original: before this repository's, which has a package of that name

        sys.path.append(str(HERE.parents[1] / "src"))
    known = {c.name: c for c in cases() if c.pair == options.pair}
    for name in names:
        began = time.perf_counter()
        row = _about(known[name])
        try:
            row |= _check(known[name]) if options.check else _judged(known[name], options.judge)
        except Exception as error:  # noqa: BLE001  # a case that cannot be built or run is a row of the table
            row |= {"died": f"{type(error).__name__}: {error}", "wrong": True}
        row["seconds"] = round(time.perf_counter() - began, 2)
        print(MARK + json.dumps(row), flush=True)


def _about(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "pair": case.pair,
        "expected": str(case.expected),
        "number": case.plant.number if case.plant else 0,
        "phase": case.plant.phase if case.plant else "",
        "places": list(case.places),
    }


def _judged(case: Case, only: list[str] | None) -> dict[str, Any]:
    from judges import FLOAT64, JUDGES, RULES, judge_by_padiff, judge_by_rule, judge_by_twinscope, plain_runs
    from planting import prepare

    wanted = only or list(JUDGES)
    found: dict[str, Any] = {}
    twins = prepare(case)
    rules = [name for name in wanted if name in RULES or name in FLOAT64]
    runs = plain_runs(twins) if rules else None
    for name in rules:
        assert runs is not None
        found[name] = _as_dict(judge_by_rule(name, runs))
    for name in (n for n in wanted if n in ORIGINALS):
        try:
            found[name] = _as_dict(judge_by_padiff(name, twins))
        except Exception as error:  # noqa: BLE001
            found[name] = {"verdict": "failed", "note": f"{type(error).__name__}: {str(error)[:100]}"}
    if "twinscope" in wanted:
        try:
            found["twinscope"] = _as_dict(judge_by_twinscope(twins))
        except Exception as error:  # noqa: BLE001  # it is on trial: what it raises is its answer
            found["twinscope"] = {"verdict": "failed", "note": f"{type(error).__name__}: {error}"}
    return {"opinions": found}


def _as_dict(opinion: Any) -> dict[str, Any]:
    return {name: getattr(opinion, name) for name in opinion.__slots__}


def _check(case: Case) -> dict[str, Any]:
    from checking import check

    return check(case)


def _line(row: dict[str, Any], check: bool) -> str:
    name = f"{row['pair']:16}{row['expected']:10}{row['name']:52}"
    if row.get("died"):
        return f"{name} DIED {row['died']}"
    if check:
        return f"{name} {'WRONG ' if row['wrong'] else 'ok    '}{row['note']} [{row['seconds']} s]"
    parts = []
    for judge, said in row["opinions"].items():
        mark = {"different": "X", "same": ".", "undecided": "?", "failed": "!"}[said["verdict"]]
        if judge != "twinscope":
            parts.append(mark)
            continue
        grade = f"{'P' if said.get('right_place') else '-'}{'C' if said.get('right_cause') else '-'}"
        parts.append(f" {mark}{grade} {' '.join(said.get('note', '').split())}"[:150])
    return f"{name} {''.join(parts)} [{row['seconds']} s]"


def _table(rows: list[dict[str, Any]]) -> str:
    """Per judge and pair: what was found, where, why, and what was called a bug that is none."""
    head = f"{'judge':24}{'pair':18}{'found':>12}{'place':>12}{'cause':>12}{'clean':>9}{'benign':>9}{'precision':>11}"
    lines = [head + f"{'no answer':>11}", f"{'':42}{'of the bugs':>36}{'called bugs, and are none':>29}"]
    judges = list(dict.fromkeys(name for row in rows for name in row.get("opinions", {})))
    for judge in judges:
        for pair in dict.fromkeys(row["pair"] for row in rows):
            own = [(r, r["opinions"][judge]) for r in rows if r["pair"] == pair and judge in r.get("opinions", {})]
            bugs = [said for r, said in own if r["expected"] == Expected.BUG]
            cells = [
                _share(sum(s["verdict"] == "different" for s in bugs), len(bugs)),
                _share(sum(s.get("right_place", False) for s in bugs), len(bugs)) if judge == "twinscope" else "-",
                _share(sum(s.get("right_cause", False) for s in bugs), len(bugs)) if judge == "twinscope" else "-",
            ]
            alarms = []
            for kind in (Expected.CLEAN, Expected.BENIGN, Expected.PRECISION):
                said = [s for r, s in own if r["expected"] == kind]
                alarms.append(f"{sum(s['verdict'] == 'different' for s in said)}/{len(said)}")
            failed = sum(s["verdict"] == "failed" for _, s in own)
            wide = "".join(f"{c:>12}" for c in cells) + f"{alarms[0]:>9}{alarms[1]:>9}{alarms[2]:>11}{failed:>11}"
            lines.append(f"{judge:24}{pair:18}{wide}")
    died = [row for row in rows if row.get("died")]
    lines += [f"no judge: {row['pair']} {row['name']}: {row['died']}" for row in died]
    lines.append(f"{len(rows)} cases, {len(died)} of them could not be run")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} {part / whole:4.0%}" if whole else "-"


if __name__ == "__main__":
    sys.exit(main())
