"""Pairs of releases that rules made by measurement call bad or good, and a real import of each pair.

`--draw FILE` writes the pairs with what is predicted of each, half of them bad: a row of a rule is drawn, then a pair
inside it. A good pair is the nearest release outside of the row that no rule forbids. `--labels FILE` installs each pair
with what the one requires as of its day, imports what the row is about, and compares.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from envsmith.model.rule import Row, Rule
from envsmith.solver import check, default_solver
from measuring.truth_names import Release, environment

_CAUSE = re.compile(r"The import of (?P<entry>\S+) takes (?P<name>\S+) in ")
# What needs a GPU, a compiler or gigabytes.
_APART = {"vllm", "flash-attn", "transformer-engine", "xformers", "bitsandbytes", "ray", "triton", "apex"}
_SINCE = "2023-01-01"
_SECONDS = 600
_RUNNER = r"""
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
parent, _, name = sys.argv[1].rpartition(".")
def texts(error):
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__
try:
    module = importlib.import_module(parent or name)
    if parent and not hasattr(module, name):
        importlib.import_module(sys.argv[1])
    print("@@" + json.dumps([]))
except BaseException as error:
    print("@@" + json.dumps(list(texts(error))))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A pair of releases, what is imported, the name that decides, and what is predicted."""

    user: str
    user_version: str
    offering: str
    offering_version: str
    entry: str
    name: str
    bad: bool
    rule: str


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--draw", type=Path, help="write the pairs here and install nothing")
    parser.add_argument(
        "--user", action="append", default=[], metavar="NAME", help="only rules of this one (repeatable)"
    )
    parser.add_argument("--labels", type=Path, help="the pairs that --draw wrote")
    parser.add_argument("--torch", action="append", default=[], metavar="RELEASE=PYTHON")
    parser.add_argument("--least-free", type=float, default=5.0, help="stop below so many GB of free disk")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))


def draw(seed: int, count: int, torches: set[str], users: frozenset[str] = frozenset()) -> Iterator[Pair]:
    """Yield pairs, half of them bad, each of another row where there are enough, bad and good ones mixed.

    With ``users`` only rules of those packages are drawn from.
    """
    chance = random.Random(seed)
    solver = default_solver()
    rules = [r for r in solver.knowledge().rules if "-imports-" in r.id and _CAUSE.search(r.rows[0].cause or "")]
    rows = [(rule, row) for rule in rules for row in rule.rows if not _APART & set(rule.components)]
    rows = [(rule, row) for rule, row in rows if not users or users & set(row.when)]
    pairs: dict[tuple[str, str, str, str], Pair] = {}
    for bad in (True, False):
        chance.shuffle(rows)
        for rule, row in [*rows, *rows]:
            if sum(p.bad is bad for p in pairs.values()) >= count // 2:
                break
            pair = _pair(rule, row, chance, torches, bad=bad)
            if pair is not None:
                pairs.setdefault((pair.user, pair.user_version, pair.offering, pair.offering_version), pair)
    mixed = list(pairs.values())
    chance.shuffle(mixed)
    yield from mixed


def _pair(rule: Rule, row: Row, chance: random.Random, torches: set[str], *, bad: bool) -> Pair | None:
    (user, when), (offering, needs) = next(iter(row.when.items())), next(iter(row.needs.items()))
    match = _CAUSE.search(row.cause or "")
    assert match is not None
    mine = [v for v, day in _released(user) if when.contains(v) and day >= _SINCE]
    releases = [v for v, day in _released(offering) if day >= "2022-10-28"]
    releases = [v for v in releases if offering != "torch" or v in torches]
    if not mine or not releases:
        return None
    version = chance.choice(mine)
    inside = {v for v in releases if not needs.contains(v)}
    candidates = sorted(inside) if bad else _outside(releases, inside)
    chance.shuffle(candidates)
    for neighbour in candidates:
        findings = [f.rule for f in check({user: version, offering: neighbour}).findings if f.severity.value == "error"]
        if (findings == [rule.id]) if bad else not findings:
            return Pair(
                user=user,
                user_version=version,
                offering=offering,
                offering_version=neighbour,
                entry=match["entry"],
                name=match["name"],
                bad=bad,
                rule=rule.id,
            )
    return None


def _outside(releases: list[str], inside: set[str]) -> list[str]:
    """Return the releases next to those that a row forbids."""
    near = []
    for before, after in itertools.pairwise(releases):
        if (before in inside) is not (after in inside):
            near.append(after if before in inside else before)
    return near


def _released(component: str) -> list[tuple[str, str]]:
    """Return the final releases of a component, oldest first, each with its day."""
    compiled = default_solver().compiled
    days = zip(compiled.versions[component], compiled.dates[component], strict=True)
    return list(dict.fromkeys((v.partition("+")[0], day) for v, day in days if re.fullmatch(r"[\d.]+(\+\w+)?", v)))


def run(options: argparse.Namespace) -> int:
    """Draw, or install, import and compare. 1 when a prediction is wrong."""
    torch = {release: Path(python) for release, _, python in (word.partition("=") for word in options.torch)}
    if options.draw:
        pairs = draw(options.seed, options.pairs, set(torch), frozenset(options.user))
        lines = [json.dumps(asdict(pair)) for pair in pairs]
        options.draw.write_text("".join(f"{line}\n" for line in lines))
        print(f"{len(lines)} pairs: {options.draw}")
        return 0
    verdicts: Counter[str] = Counter()
    for line in options.labels.read_text().splitlines():
        pair = Pair(**json.loads(line))
        if shutil.disk_usage(options.scratch).free < options.least_free * 1e9:
            verdict, text = "not run", "the disk is full"
        else:
            verdict, text = _verdict(pair, torch, options.scratch)
        kind = "bad" if pair.bad else "good"
        verdicts[f"{kind}, {verdict}"] += 1
        sides = f"{pair.user} {pair.user_version} with {pair.offering} {pair.offering_version}"
        print(f"{verdict}: {kind}: {sides}: {pair.entry} takes {pair.name}: {text[:200]}", flush=True)
    print(dict(verdicts))
    return 1 if any("wrong" in verdict for verdict in verdicts) else 0


def _verdict(pair: Pair, torch: dict[str, Path], scratch: Path) -> tuple[str, str]:
    home = Path(tempfile.mkdtemp(prefix=f"{pair.user}-", dir=scratch))
    try:
        days = dict(_released(pair.user))[pair.user_version], dict(_released(pair.offering))[pair.offering_version]
        neighbour = f"{pair.offering}=={pair.offering_version}"
        if pair.offering == "torch" and pair.offering_version not in torch:
            return "not run", "no interpreter has that torch"
        if pair.offering == "torch":
            torch, neighbour = {pair.offering_version: torch[pair.offering_version]}, ""
        release = Release(
            name=pair.user,
            version=pair.user_version,
            day=dt.date.fromisoformat(max(days)),
            beside=(neighbour,) if neighbour else (),
        )
        python = environment(home, release, torch)
        if python is None:
            return "not judged", "it cannot be installed"
        texts = _imported(python, pair.entry)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if texts is None:
        return "not judged", "no answer"
    if not texts:
        return ("wrong" if pair.bad else "right"), "imported"
    return _of_failure(pair, texts)


def _of_failure(pair: Pair, texts: list[str]) -> tuple[str, str]:
    """Judge an import that failed. Any name that the offering package lacks makes a pair bad."""
    message = " · ".join(texts)
    module = pair.name.partition(".")[0]
    is_about = f"'{module}" in message
    return ("not judged" if not is_about else "right" if pair.bad else "wrong"), message


def _imported(python: Path, entry: str) -> list[str] | None:
    command = [str(python), "-c", _RUNNER, entry]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=python.parent
        )
    except subprocess.TimeoutExpired:
        return None
    line = next((line for line in result.stdout.splitlines() if line.startswith("@@")), None)
    return json.loads(line[2:]) if line else None
