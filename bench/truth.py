"""What is predicted without running anything, held against the real thing.

    python bench/truth.py wheels --seed 1 --pairs 160 --torch 2.0.1 --torch 2.5.1 …
    python bench/truth.py names --seed 1 --count 300 --torch 2.13.0=PYTHON
    python bench/truth.py imports --seed 1 --draw pairs.jsonl --torch 2.13.0=PYTHON
    python bench/truth.py pairs --seed 1 --draw pairs.jsonl
    python bench/truth.py asked --seed 1 --each 4

`wheels` draws pairs of a compiled wheel and a build of torch, says whether they link, then imports that torch and loads
every compiled file of the wheel. It needs the package index, uv and about 6 GB of disk, for one build at a time.

`names` draws names, members and arguments of releases, half of them such that only other releases have them, asks the
index and then a real import in an environment of the release. torch comes from an interpreter that has it.

`imports` draws pairs of releases that rules made by measurement call bad, and neighbours that nothing forbids. The pairs
are written down first (`--draw FILE`), then installed and imported (`--labels FILE`).

`pairs` does the same with packages that nobody measured, and writes what the imports said as sets for
`bench/knowledge.py --index`.

`asked` draws what neighbouring releases of packages that no table has do not share, writes Python's message of it, and
asks `doctor` with the package index. Labels are read by `ast` from whole wheels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measuring import truth_asked, truth_imports, truth_names, truth_pairs, truth_wheels

HALVES = {
    "wheels": truth_wheels,
    "names": truth_names,
    "imports": truth_imports,
    "pairs": truth_pairs,
    "asked": truth_asked,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    halves = parser.add_subparsers(dest="half", required=True)
    for name, half in HALVES.items():
        half.add_options(halves.add_parser(name, help=half.__doc__.splitlines()[0]))
    options = parser.parse_args()
    return HALVES[options.half].run(options)


if __name__ == "__main__":
    sys.exit(main())
