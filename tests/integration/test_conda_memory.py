"""What the index of a Conda channel may cost in memory, however dense it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DENSE = """
import json, pathlib, resource, sys
sys.path.insert(0, sys.argv[3])
from envsmith.conda.channels import fetch_indexes
from envsmith.conda.model import RepoLimits
import rattler
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    fetch_indexes([sys.argv[1]], ["linux-64"], cache_dir=pathlib.Path(sys.argv[2]), offline=False, progress=print,
                  limits=RepoLimits(index_bytes=64 << 20))
    told = "read"
except Exception as error:
    told = type(error).__name__
print(json.dumps({"told": told, "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}))
"""


@pytest.mark.parametrize(("size", "told"), [(60, "read"), (70, "NetworkError")])
def test_densest_index_costs_a_small_multiple_of_its_size(tmp_path, size, told):
    """Millions of empty records: the most that a byte of index can cost."""
    place = tmp_path / "ch" / "linux-64"
    place.mkdir(parents=True)
    with (place / "repodata.json").open("w") as out:
        out.write('{"packages.conda":{')
        number = 0
        while out.tell() < (size << 20) - 100:
            out.write(",".join(f'"{number + i:x}-1-0.conda":{{}}' for i in range(5000)) + ",")
            number += 5000
        out.write('"z-1-0.conda":{}}}')
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            DENSE,
            (tmp_path / "ch").as_uri(),
            str(tmp_path / "cache"),
            str(Path(__file__).resolve().parents[2]),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["told"] == told
    assert answer["kib"] < 4 * 64 * 1024  # 3.3 bytes a byte were measured with py-rattler 0.28
