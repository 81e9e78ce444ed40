"""The figures and names of the docs: counted by the benches or taken from the registries, written where they stand.

    python tools/figures.py             run the cheap benches again, write the figures, the table of the page and the badges
    python tools/figures.py --show      write the page, the badges and the names from what is there
    python tools/figures.py --check     write nothing, name each file that differs, and exit with 1 if one does

The figures of cheap benches are held to what the benches print by `tests/docs`. The others are written by hand into the
file, with the day and the machine.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench" / "figures.json"
PAGE = ROOT / "docs" / "explanation" / "trust.md"
BADGES = ROOT / "docs" / "page"
_CASES = "tests/cases/doctor"
_BEGIN, _END = "<!-- figures:begin -->", "<!-- figures:end -->"


def first_sight() -> dict[str, str]:
    """Return how the doctor judged reports when it saw them first, as the cases record it."""
    sealed = [row for row in _read("round2.jsonl") if row["split"] == "sealed" and not row["negative"]]
    unseen = [row for row in _read("round3.jsonl") if row["split"] in {"fresh", "again"}]
    faults, others = [r for r in unseen if not r["negative"]], [r for r in unseen if r["negative"]]
    return {
        "doctor-first-sight-sealed": _share(sum(row["first"] == "found" for row in sealed), len(sealed)),
        "doctor-first-sight-unseen": _share(sum(row["first"] == "found" for row in faults), len(faults)),
        "doctor-alarms-unseen": _share(sum(row["first"] == "false alarm" for row in others), len(others)),
    }


def doctor() -> dict[str, str]:
    """Return how the doctor judges the same reports today."""
    cause, alarms = "cause exact or equivalent (all evaluable)", "negatives with an error-level finding"
    sealed = _bench("bench/doctor.py", f"{_CASES}/round2.jsonl", "--split", "sealed")
    unseen = [_bench("bench/doctor.py", f"{_CASES}/round3.jsonl", "--split", split) for split in ("fresh", "again")]
    return {
        "doctor-today-sealed": _sum(sealed[cause]),
        "doctor-today-unseen": _sum(*(summary[cause] for summary in unseen)),
        "doctor-today-alarms": _sum(sealed[alarms], *(summary[alarms] for summary in unseen)),
    }


def check() -> dict[str, str]:
    """Return how many failures of public reports `check` sees, and how often it is wrong about healthy environments."""
    stated, ranges = "caught, all records, env alone", "caught, all records, env + culprit's range"
    final = _bench("bench/knowledge.py", "bench/corpus/threads.jsonl", "--part", "final")
    third = _bench("bench/knowledge.py", "bench/corpus/threads-3.jsonl")
    sets = [_bench("bench/knowledge.py", f"bench/corpus/breakages{number}.jsonl") for number in ("", "-2", "-3")]
    good = [run[f"{what} with an error"] for run in sets for what in ("good neighbours", "healthy sets")]
    return {
        "check-stated": _sum(final[stated], third[stated]),
        "check-range": _sum(final[ranges], third[ranges]),
        "check-breakages-today": _sum(*(run["bad sets caught"] for run in sets)),
        "check-breakages-alarms": _sum(*good),
        "check-healthy": _sum(third["false alarms on healthy cells (errors)"]),
        "check-healthy-warned": _sum(third["  healthy cells with a warning only"]),
    }


COUNTS = (first_sight, doctor, check)


def _bench(*words: str) -> dict[str, Any]:
    command = [sys.executable, *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout)["summary"]
    return summary


def _read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / _CASES / path).read_text(encoding="utf-8").splitlines()]


def _sum(*texts: str) -> str:
    """Return the sum of results such as "2/24 = 8.3 %"."""
    pairs = [text.partition(" ")[0].split("/") for text in texts]
    return _share(sum(int(part) for part, _ in pairs), sum(int(whole) for _, whole in pairs))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f}%)" if part and part < whole else "")


def read() -> dict[str, dict[str, str]]:
    """Return the figures: name to question, result, command, day and, for what is not counted here, remarks."""
    figures: dict[str, dict[str, str]] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def with_table(page: str) -> str:
    """Return the page with the tables between its markers made from the figures."""
    groups: dict[str, list[str]] = {}
    for figure in read().values():
        row = f"| {figure['question']} | **{figure['result']}** | `{figure['command']}` | {figure['day']} |"
        groups.setdefault(figure["group"], []).append(row)
    lines = []
    for group, rows in groups.items():
        lines += [f"## {group}", "", "| | result | counted by | day |", "|---|---|---|---|", *rows, ""]
    before, _, tail = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n" + "\n".join(lines) + f"{_END}{tail.partition(_END)[2]}"


def badge(label: str, message: str, colour: str) -> str:
    """Return a badge as SVG, in the shape that people know from other projects."""
    left, right = 10 + round(6.4 * len(label)), 10 + round(6.4 * len(message))
    width = left + right
    words = "".join(
        f'<text x="{x}" y="14">{escape(text)}</text>' for x, text in ((left / 2, label), (left + right / 2, message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{escape(label)}: {escape(message)}">'
        f'<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#555"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{words}</g></svg>\n'
    )


def badges() -> dict[str, str]:
    """Return the badges of the README by file name."""
    from envsmith.knowledge.graph.expiry import load_expiry
    from envsmith.knowledge.graph.location import find_matrix
    from envsmith.matrix.cells import Status, cell_states
    from envsmith.model.record import read_records

    matrix = find_matrix()
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    states = cell_states(read_records(matrix / "records"), load_expiry(matrix), today)
    proved = sum(state.status is Status.PROVED for state in states)
    return {
        "python.svg": badge("python", "3.10 or later", "#3572a5"),
        "licence.svg": badge("licence", "Apache-2.0", "#3572a5"),
        "matrix.svg": badge("environments", f"{proved} of {len(states)} proved", "#2f7d32"),
    }


# Where the frameworks are named, all of them in the order of the registry: the file, and what stands around the names.
_NAMED = (
    ("README.md", r"(?<=\*\*Training environments for ).*?(?= that work:)"),
    ("pyproject.toml", r"(?<=builds and proves environments for ).*?(?= from a compatibility graph)"),
    ("action.yml", r"(?<=against the version graph of ).*?(?=; make its CI matrix)"),
    ("docs/index.md", r"(?<=makes training environments that work, for ).*?(?=\. It picks)"),
    ("docs/terms.md", r"(?<=--framework NAME\[SPEC\]` \| ).*?(?=\. Repeat it)"),
)
# Counts that stand in sentences: the file, what stands around the count, and its name.
_COUNTED = (
    ("docs/how-to/wheels.md", r"(?<=envsmith knows about )[\d,]+(?= of them)", "wheels"),
    ("docs/how-to/wheels.md", r"(?<=^The )\d+(?= default builds of torch)", "builds"),
    ("docs/terms.md", r"(?<=compilers \| the )\w+(?= frameworks)", "frameworks"),
)
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def names() -> dict[Path, str]:
    """Return each file in which the frameworks are named or something is counted, as it has to read."""
    from envsmith.frameworks import FRAMEWORKS

    titles = [framework.title for framework in FRAMEWORKS.values()]
    spelt = [
        f"`{name}`" + "".join(f" (also `{alias}`)" for alias in framework.aliases[:1])
        for name, framework in FRAMEWORKS.items()
    ]
    counts = {
        "wheels": f"{round(_count_of_wheels(), -2):,}",
        "builds": str(_count_of_builds()),
        "frameworks": _WORDS[len(FRAMEWORKS)],
    }
    texts: dict[Path, str] = {}
    for file, around in _NAMED:
        listed = f"{', '.join(spelt[:-1])} or {spelt[-1]}" if file == "docs/terms.md" else _listed(titles)
        _put(texts, file, around, listed)
    for file, around, name in _COUNTED:
        _put(texts, file, around, counts[name])
    return texts


def _put(texts: dict[Path, str], file: str, around: str, words: str) -> None:
    """Put words into the one place of a file. A place that is gone, or there twice, ends the program."""
    path = ROOT / file
    text = texts.get(path) or path.read_text(encoding="utf-8")
    pattern = re.compile(around, re.DOTALL | re.MULTILINE)
    found = pattern.findall(text)
    if len(found) != 1:
        sys.exit(f"{file}: {len(found)} places for {words!r}: change tools/figures.py with the page")
    if " ".join(found[0].split()) != words:  # a page may break the line within them
        text = pattern.sub(lambda _: words, text)
    texts[path] = text


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _count_of_wheels() -> int:
    from envsmith.knowledge.graph.location import find_matrix
    from envsmith.knowledge.graph.wheels import ready_wheels

    files = (find_matrix() / "wheels").glob("*.yaml")
    return sum(len(ready_wheels(file.stem)) for file in files if file.stem != "publishers")


def _count_of_builds() -> int:
    from envsmith.knowledge.graph.location import find_matrix
    from envsmith.knowledge.symbols.table import SymbolTable

    return len(SymbolTable(find_matrix() / "symbols").builds)


def texts() -> dict[Path, str]:
    """Return every file that this program writes without a bench, as it has to read."""
    written = {PAGE: with_table(PAGE.read_text(encoding="utf-8"))}
    written |= {BADGES / name: text for name, text in badges().items()}
    return written | names()


def differences() -> list[str]:
    """Return the files that differ from what the figures, records and registries say."""
    return [
        str(path.relative_to(ROOT))
        for path, text in texts().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write figures, page, badges and names, or say which differ."""
    if "--check" in sys.argv:
        differing = differences()
        print("\n".join(f"{name}: run tools/figures.py --show" for name in differing) or "nothing differs")
        return 1 if differing else 0
    figures = read()
    if "--show" not in sys.argv:
        today = str(dt.datetime.now(tz=dt.timezone.utc).date())
        for name, result in (pair for count in COUNTS for pair in count().items()):
            if figures[name]["result"] != result:
                figures[name].update(result=result, day=today)
        FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
