"""What a launcher, the doctor and `envsmith run` said of a launch that failed, compared with the label of the fault.

A rank is right where it alone is named, or where no rank can be told and none is. It is wrong where others are named without it. A cause is right
where the words of its kind stand in what was said, the exception is named where the label has one, and, where only the place says what blocks, the place.
Names of the functions of the bench are taken out first: they would tell.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import clean, read_texts

HERE = Path(__file__).parent.parent
STALL = 6
_HEALTHY = re.compile(r"healthy|odd")
_TABLE = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*: (\d+)", re.DOTALL)
_DEEPSPEED = re.compile(r"Killing subprocess|exits with return code")
_BLOCK = re.compile(r"^envsmith run: .*(?:\n  .*)*", re.MULTILINE)
_RANKS = re.compile(r"(?:Each of )?[Rr]anks? (\d+(?:(?:, | and )\d+)*)")


@dataclass(frozen=True, kw_only=True)
class Said:
    """What was said first: the ranks it names, its whole text, and when, in seconds after the fault."""

    ranks: tuple[int, ...] = ()
    text: str = ""
    after: float | None = None
    is_hang: bool = False


def count(rows: list[dict], options: argparse.Namespace) -> int:
    causes = {}
    for name in ("faults.yaml", "launches.yaml"):
        causes |= yaml.safe_load((HERE / name).read_text())["causes"]
    places = marks()
    results = []
    for row in rows:
        for who, said in answers(row, options.folder):
            own = {row["place"]: place_in(row["text"])} if "text" in row and "place" in row else places
            results.append({"id": row["id"], "half": row["half"], "who": who} | compared(row, said, causes, own))
    for result in results:
        print("{id:26} {who:9} rank {rank:7} cause {cause:6} place {place:6} {named}".format(**result))
    for half in dict.fromkeys(row["half"] for row in rows):
        for who in ("launcher", "detail", "py-spy", "doctor", "run"):
            summary(half, who, [r for r in results if (r["half"], r["who"]) == (half, who)])
    alarms(rows, options.folder)
    statuses(rows, options.folder)
    if options.json:
        options.json.write_text("".join(json.dumps(result) + "\n" for result in results))
    return 0


def marks() -> dict[str, str]:
    """Return the places of the scripts: mark -> ``file:line``."""
    return {
        match[1]: f"{path.name}:{number}"
        for path in sorted((HERE / "faults").glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := re.search(r"# place: (\S+)", line))
    }


def place_in(script: str) -> str:
    """Return the place of the mark in a script of its own."""
    return next(f"train.py:{number}" for number, line in enumerate(script.splitlines(), 1) if line.endswith("# here"))


def answers(row: dict, folder: Path) -> Iterable[tuple[str, Said]]:
    if _HEALTHY.match(row["half"]):
        return
    alone, watched = (folder / mode / row["id"] / "output.txt" for mode in ("alone", "run"))
    if alone.exists() or ("text" in row and watched.exists()):
        # What a launcher prints is the same under `envsmith run`, until that ends a hang.
        text = alone.read_text() if alone.exists() else _BLOCK.sub("", watched.read_text())
        yield "launcher", of_launcher(text)
        yield "doctor", of_doctor(text)
    detail = folder / "detail" / row["id"] / "output.txt"
    if detail.exists():
        yield "detail", of_launcher(detail.read_text())
    spied = folder / "spy" / row["id"] / "spy.json"
    if spied.exists():
        yield "py-spy", of_spy(json.loads(spied.read_text()))
    if watched.with_name("result.json").exists():
        yield "run", of_run(folder / "run" / row["id"])


def of_launcher(text: str) -> Said:
    """The launcher names the rank of its first failure; its cause is anything that it prints."""
    match = _TABLE.search(text)
    return Said(ranks=(int(match[1]),) if match else (), text=text)


def of_spy(rows: list[dict]) -> Said:
    """Who reads the stacks takes the one rank whose main thread stands at another line of the script than the others do."""
    places: dict[str, list[int]] = {}
    for row in rows:
        main = row["dump"].partition('"MainThread"')[2].partition("\nThread")[0]
        found = re.search(r"train\.py:\d+", main)
        places.setdefault(found[0] if found else "", []).append(row["rank"])
    odd = [ranks[0] for ranks in places.values() if len(ranks) == 1]
    text = "\n".join(row["dump"] for row in rows)
    return Said(ranks=tuple(odd) if len(odd) == 1 and len(rows) > 2 else (), text=text)


def of_doctor(text: str) -> Said:
    cleaned = clean(text)
    root = diagnose(read_texts([("train.log", text)]), [("train.log", cleaned)]).root
    if root is None:
        return Said()
    words = f"{root.finding.message} {root.quote or ''}"
    is_of_ranks = root.finding.rule.startswith("rank")
    return Said(ranks=named(root.finding.message) if is_of_ranks else (), text=words)


def of_run(folder: Path) -> Said:
    """The first block of `envsmith run` that is a verdict, or else the last one that says for whom the others wait."""
    output, result = (folder / "output.txt").read_text(), json.loads((folder / "result.json").read_text())
    times = [float(line) for line in (folder / "times.txt").read_text().split()]
    blocks = [match for match in _BLOCK.finditer(output) if match[0].count("\n") > 1]
    verdicts = [
        match for match in blocks if not match[0].startswith(("envsmith run: waiting", "envsmith run: note: no rank"))
    ]
    if not blocks:
        return Said()
    match = verdicts[0] if verdicts else blocks[-1]
    lines, number = match[0].splitlines(), output.count("\n", 0, match.start())
    after = times[number] - result["injected"] if result["injected"] and number < len(times) else None
    text = "\n".join(line for line in lines if not line.startswith(("  next:", "  all evidence:")))
    return Said(ranks=named(lines[1]), text=text, after=after, is_hang=": hang:" in lines[0])


def verdict_ranks(block: str) -> tuple[int, ...]:
    """The ranks that a block blames. To be waited for is no blame."""
    lines = block.splitlines()
    return (
        named(lines[1])
        if len(lines) > 2 and not lines[0].startswith(("envsmith run: waiting", "envsmith run: note"))
        else ()
    )


def named(message: str) -> tuple[int, ...]:
    """The ranks that a sentence begins with, or else the first that it names as the subject."""
    head = message.strip().partition(". ")[0]
    match = _RANKS.match(head) or re.search(r"(?:kernel ended|for) (rank \d+)", head)
    return tuple(int(number) for number in re.findall(r"\d+", match[1])) if match else ()


def compared(row: dict, said: Said, causes: dict, places: dict[str, str]) -> dict:
    expected = row["rank"]
    if expected is None and set(said.ranks) == set(range(row.get("ranks", 2))):
        rank = "right"  # that all of them failed alike is what there is to say
    elif expected is None or (row.get("tie") and not said.ranks):
        rank = "right" if not said.ranks and said.text else "wrong" if said.ranks else "none"
    elif said.ranks == (expected,):
        rank = "right"
    else:
        rank = "none" if not said.ranks else "several" if expected in said.ranks else "wrong"
    bare = re.sub(r"(\w+\.py:\d+) \(\w+\)", r"\1", said.text)
    place = places.get(row.get("place", ""), "")
    is_place = bool(place) and (
        place in bare or bool(re.search(rf'{place.split(":")[0]}", line {place.split(":")[1]}\b', bare))
    )
    kind = causes[row["cause"]]
    is_cause = bool(said.text) and bool(re.search(kind["words"], bare)) and bool(re.search(row.get("error", ""), bare))
    if kind.get("place"):
        is_cause = is_cause and is_place
    return {
        "rank": rank,
        "cause": "right" if is_cause else "none",
        "place": ("right" if is_place else "none") if place else "-",
        "named": list(said.ranks),
        "after": said.after,
        "is_hang": said.is_hang,
    }


def summary(half: str, who: str, results: list[dict]) -> None:
    if not results:
        return
    whole = len(results)
    ranks = [result["rank"] for result in results]
    causes = sum(result["cause"] == "right" for result in results)
    placed = [result["place"] for result in results if result["place"] != "-"]
    late = [result["after"] - STALL for result in results if result["is_hang"] and result["after"] is not None]
    times = (
        f", verdict of a hang {statistics.median(late):.1f} s (at most {max(late):.1f}) after the threshold"
        if late
        else ""
    )
    print(
        f"{half:7} {who:9} {whole:3} launches: rank right {ranks.count('right')} ({ranks.count('right') / whole:.0%}), wrong {ranks.count('wrong')} "
        f"({ranks.count('wrong') / whole:.0%}), several {ranks.count('several')}, none {ranks.count('none')}; cause right {causes} ({causes / whole:.0%}); "
        f"place {placed.count('right')} of {len(placed)}{times}"
    )


def alarms(rows: list[dict], folder: Path) -> None:
    """Count what was said of launches with no fault."""
    done = [
        row for row in rows if _HEALTHY.match(row["half"]) and (folder / "run" / row["id"] / "result.json").exists()
    ]
    hangs, blamed, waiting = [], [], []
    for row in done:
        output = (folder / "run" / row["id"] / "output.txt").read_text()
        blocks = [match[0] for match in _BLOCK.finditer(output)]
        hangs += [row["id"]] if any(block.startswith("envsmith run: hang") for block in blocks) else []
        waiting += [row["id"]] if any(block.startswith("envsmith run: waiting") for block in blocks) else []
        is_blamed = any(verdict_ranks(block) for block in blocks)
        blamed += [row["id"]] if is_blamed and row["id"] not in hangs else []
    if done:
        print(
            f"healthy {len(done)} launches: hang alarms {len(hangs)} {hangs}, a rank blamed {len(blamed)} {blamed}, only said to wait {len(waiting)} {waiting}"
        )


def statuses(rows: list[dict], folder: Path) -> None:
    """Compare the exit codes with and without `envsmith run`. A hang that was stopped has none of its own."""
    same, different = 0, []
    for row in rows:
        results = [folder / mode / row["id"] / "result.json" for mode in ("alone", "run")]
        if all(path.exists() for path in results) and not of_run(folder / "run" / row["id"]).is_hang:
            alone, run = (json.loads(path.read_text())["status"] for path in results)
            same += alone == run
            different += [f"{row['id']} {alone}/{run}"] if alone != run else []
    print(f"exit codes: equal {same}, different {len(different)} {different}")
