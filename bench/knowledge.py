"""How much of a corpus of real bug reports ``envsmith check`` sees in the environment: caught, missed, false alarms; per cause.

    python bench/knowledge.py CORPUS.jsonl [--part NAME] [--cells FILE.yaml] [--peers] [--pip N] [--json] [--show]

Log lines, title and answer of a record are not read. Three rounds (``bench/measuring/judging.py``): what the structured environment says; with the
pasted report; with a state inside the culprit's range for what was left unsaid. A record is caught when one error or warning names everything
that its culprit names: components (torch and the CUDA it is built with count as one; a culprit inside a framework is that framework) and facts
(``limit.shm``, ``NCCL_P2P_DISABLE``, ``tool.which``). A false alarm is an error on a negative record or on a cell that its framework's own CI runs or
ships; warnings on those are counted beside.

A corpus of sets (`bad`, `good`) is counted as ``bench/measuring/breakages.py`` says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where it is loaded by path, as tests do

from measuring.breakages import judge_breakage, show_breakages, summarize
from measuring.culprits import add_culprit, culprits
from measuring.environments import read_env
from measuring.healthy import healthy
from measuring.judging import judge
from measuring.peers import ask_peers
from measuring.telling import per_cause, show, summary, tell

__all__ = ["add_culprit", "culprits", "healthy", "judge", "main", "read_env"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument(
        "--part", help="only records whose `part` is this (`open` or `final` of bench/corpus/threads.jsonl)"
    )
    parser.add_argument("--cells", type=Path, help="a YAML file of healthy cells; default: matrix/tested")
    parser.add_argument("--peers", action="store_true", help="ask uv and pip too (network)")
    parser.add_argument("--pip", type=int, default=12, help="how many sets pip is asked with --peers")
    parser.add_argument("--index", action="store_true", help="of sets: ask the package index for unknown releases")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="every record with its set and findings")
    options = parser.parse_args(argv)
    records = [json.loads(line) for line in options.corpus.read_text().splitlines() if line.strip()]
    if all("bad" in record for record in records):
        return _sets(records, options)
    evaluable = [r for r in records if r.get("evaluable", True) and options.part in {None, r.get("part")}]
    started = time.process_time()
    rows = [judge(r) for r in evaluable if r["detectable_from"] in {"env", "both"} and not r.get("negative")]
    negatives = [judge(r) for r in evaluable if r.get("negative")]
    cells = healthy(options.cells)
    seconds = time.process_time() - started
    said: dict[str, Counter[str]] = ask_peers([r for r in rows if r.versioned], options.pip) if options.peers else {}
    if options.json:
        found = {"summary": summary(rows, negatives, cells), "causes": per_cause(rows), "peers": said}
        print(json.dumps(found, indent=1, default=dict))
        return 0
    tell(rows, negatives, cells, said)
    print(f"\n{len(rows)} records, {len(negatives)} negatives, {len(cells)} cells in {seconds:.1f} CPU seconds")
    if options.show:
        show((*rows, *negatives))
    return 0


def _sets(records: list[dict[str, Any]], options: argparse.Namespace) -> int:
    rows = [judge_breakage(record, index=options.index) for record in records]
    if options.json:
        print(json.dumps({"summary": summarize(rows)}, indent=1))
        return 0
    print("\n".join(f"{what}: {figure}" for what, figure in summarize(rows).items()))
    if options.show:
        show_breakages(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
