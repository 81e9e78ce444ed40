"""Pairs of popular packages that nobody measured, one forced beside the other, and a real import of each pair.

`--draw FILE` writes pairs: an old release of a user with a newer one of what it takes, or the other way round. `--labels
FILE` installs each user as of its day, imports its modules, forces the other release in and imports them again. What
breaks only then is a bad set, what does not is a good one: `--sets FILE` gets both as `bench/knowledge.py --index` reads
them. Of a pair whose failure is about a third package nothing is written.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import EnvsmithError
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import IndexFile, PackageIndex, quick_index
from envsmith.lock.index.uv import find_uv
from envsmith.model.cell import Platform
from envsmith.project.published.stated import declared

# A user, and what it takes with a weak bound.
PAIRS = """
gensim/scipy spacy/pydantic librosa/numpy librosa/scipy flask/werkzeug flask/jinja2 jinja2/markupsafe altair/pandas
altair/jsonschema seaborn/matplotlib seaborn/pandas datasets/fsspec datasets/pyarrow datasets/huggingface-hub
evaluate/datasets gradio/pydantic gradio/huggingface-hub gradio/starlette wandb/protobuf wandb/pydantic
tensorboard/protobuf tensorboardx/protobuf langchain/pydantic openai/httpx anthropic/httpx optax/jax flax/jax chex/jax
dm-haiku/jax imbalanced-learn/scikit-learn shap/numpy xgboost/scipy hyperopt/networkx hydra-core/omegaconf
mlflow/sqlalchemy mlflow/pandas dask/pandas dask/numpy zarr/numcodecs fastapi/starlette fastapi/pydantic typer/click
black/click spacy/typer spacy/thinc streamlit/altair streamlit/protobuf streamlit/click bokeh/numpy bokeh/jinja2
bokeh/tornado scikit-image/numpy scikit-image/scipy statsmodels/scipy statsmodels/pandas arviz/xarray arviz/scipy
xarray/pandas xarray/numpy celery/kombu celery/click s3fs/fsspec s3fs/aiobotocore jupyter-client/tornado
nbconvert/mistune nbconvert/jinja2 sphinx/docutils sphinx/jinja2 flask-sqlalchemy/sqlalchemy sqlmodel/pydantic
pytest/pluggy httpx/httpcore requests/urllib3 botocore/urllib3 google-api-core/protobuf umap-learn/scikit-learn
category-encoders/scikit-learn lightgbm/scikit-learn sktime/scikit-learn distributed/dask distributed/tornado
holoviews/pandas dash/flask dash/werkzeug flask-login/werkzeug moto/werkzeug prefect/pydantic datasets/dill
networkx/numpy networkx/scipy pingouin/pandas lifelines/scipy nilearn/scikit-learn geopandas/shapely pandera/pandas
great-expectations/marshmallow marshmallow-sqlalchemy/marshmallow apispec/marshmallow papermill/click dvc/fsspec
"""
_PYTHONS = {"3.8": "2019-10", "3.9": "2020-10", "3.10": "2021-10", "3.11": "2022-10", "3.12": "2023-10"}
_SINCE, _APART_DAYS, _TRIES, _SECONDS = "2020-01-01", 500, 60, 240
_NOT_ABOUT_NAMES = ("ImportError", "ModuleNotFoundError", "AttributeError")
_RUNNER = r"""
import importlib, importlib.metadata, json, os, pathlib, pkgutil, re, sys, traceback, warnings
warnings.simplefilter("ignore")
user, other = sys.argv[1:3]
normal = lambda name: re.sub("[-_.]+", "-", name).lower()
def roots(project):
    paths = [f.parts for f in importlib.metadata.files(project) or ()]
    tops = {p[0] for p in paths if len(p) == 2 and p[1] == "__init__.py"} | {p[0][:-3] for p in paths if len(p) == 1 and p[0].endswith(".py")}
    tops -= {"tests", "test", "docs", "examples", "benchmarks"}
    return sorted(tops, key=lambda t: (normal(t) != normal(project), t))
def attempt(name):
    try:
        importlib.import_module(name)
        return {}
    except BaseException as error:
        frames, texts = [], []
        while error is not None:
            frames += [f.filename.partition("site-packages/")[2].split("/")[0] for f in traceback.extract_tb(error.__traceback__)]
            texts.append("%s: %s" % (type(error).__name__, re.sub(r" \(/[^)]*\)", "", str(error))[:300]))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return {"error": " | ".join(texts), "frames": [f for f in frames if f]}
root = roots(user)[0]
spec = importlib.util.find_spec(root)
below = [m.name for m in pkgutil.iter_modules(spec.submodule_search_locations or []) if not m.name.startswith(("_", "test", "conftest"))]
out = os.dup(1)
for stream in (1, 2): os.dup2(os.open(os.devnull, os.O_RDWR), stream)
found = {n: attempt(n) for n in [root, *(root + "." + b for b in below[:40])]}
os.write(out, ("@@" + json.dumps({"roots": [roots(user), roots(other)], "found": found}) + "\n").encode())
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForcedPair:
    """A release of a user with a release of what it takes, whether it declares that it works, and the Python."""

    user: str
    user_version: str
    offering: str
    offering_version: str
    days: tuple[str, str]
    is_declared: bool
    python: str


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--draw", type=Path, help="write the pairs here and install nothing")
    parser.add_argument("--labels", type=Path, help="the pairs that --draw wrote")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="of N runs that share one draw, the K-th")
    parser.add_argument("--sets", type=Path, help="append what was imported here, as sets")
    parser.add_argument("--pythons", type=Path, default=Path.home() / ".pyenv" / "versions")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))


def run(options: argparse.Namespace) -> int:
    """Draw, or install, import and write."""
    if options.draw:
        with options.draw.open("w") as file:
            for pair in draw(options.seed, options.pairs):
                print(json.dumps(asdict(pair)), file=file, flush=True)
        return 0
    part, parts = map(int, options.part.split("/"))
    tally: Counter[str] = Counter()
    for line in options.labels.read_text().splitlines()[part - 1 :: parts]:
        pair = ForcedPair(**json.loads(line))
        record = _labelled(pair, options.pythons, options.scratch)
        tally[record["kind"]] += 1
        print(json.dumps(record), flush=True)
        if record.get("bad") or record.get("good"):
            with options.sets.open("a") as file:
                print(json.dumps(record), file=file)
    print(dict(tally))
    return 0


def draw(seed: int, count: int) -> Iterator[ForcedPair]:
    """Yield pairs of each two packages in turn: four of five of them such that the user declares that they work."""
    chance, packages = random.Random(seed), quick_index()
    names = [tuple(word.split("/")) for word in PAIRS.split()]
    chance.shuffle(names)
    for number in range(count):
        user, offering = names[number % len(names)]
        with suppress(EnvsmithError):
            if pair := _pair(packages, user, offering, chance):
                yield pair


def _pair(packages: PackageIndex, user: str, offering: str, chance: random.Random) -> ForcedPair | None:
    mine, theirs = _released(packages, user), _released(packages, offering)
    wants_declared, wants_newer = chance.random() < 0.85, chance.random() < 0.8
    for _ in range(_TRIES if mine and theirs else 0):
        version, other = chance.choice([*mine]), chance.choice([*theirs])
        days = _day(mine[version]), _day(theirs[other])
        apart = (dt.date.fromisoformat(days[1]) - dt.date.fromisoformat(days[0])).days
        if (apart if wants_newer else -apart) < _APART_DAYS:
            continue
        pythons = [
            p for p, day in _PYTHONS.items() if day < max(days) and _fits(mine[version], p) and _fits(theirs[other], p)
        ]
        if not pythons:
            continue
        python = chance.choice(pythons)
        file = best_file(mine[version])
        bounds = declared(read_release(packages.fetcher, file), python, Platform.LINUX_64) if file else {}
        if offering not in bounds:
            continue
        is_declared = any(each.contains(other) for each in bounds[offering])
        if is_declared is wants_declared:
            return ForcedPair(
                user=user,
                user_version=version,
                offering=offering,
                offering_version=other,
                days=days,
                is_declared=is_declared,
                python=python,
            )
    return None


def _released(packages: PackageIndex, project: str) -> dict[str, tuple[IndexFile, ...]]:
    """Return the files of the final releases since a day that have a wheel."""
    releases = packages.project(project).releases().items()
    return {
        v: files for v, files in releases if not Version(v).is_prerelease and _day(files) > _SINCE and _has_wheel(files)
    }


def _has_wheel(files: tuple[IndexFile, ...]) -> bool:
    return any(f.is_wheel and f.yanked is None for f in files)


def _day(files: tuple[IndexFile, ...]) -> str:
    return min(f.day or "9" for f in files)


def _fits(files: tuple[IndexFile, ...], python: str) -> bool:
    tag = python.replace(".", "")
    name = re.compile(
        rf"-(py3|py2\.py3|py38|py{tag})-none-any|-cp{tag}-\w+-manylinux[\w.]*x86_64|abi3-manylinux[\w.]*x86_64"
    )
    return any(name.search(f.filename) and SpecifierSet(f.requires_python or "").contains(f"{python}.9") for f in files)


def _labelled(pair: ForcedPair, pythons: Path, scratch: Path) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix=f"{pair.user}-", dir=scratch))
    sides = [f"{pair.user}=={pair.user_version}", f"{pair.offering}=={pair.offering_version}"]
    record = {"kind": "", "user": sides[0], "offering": sides[1], "declared": pair.is_declared}
    try:
        exact = next(pythons.glob(f"{pair.python}.*"), None)
        python, uv = home / "env" / "bin" / "python", find_uv()
        install = [uv, "pip", "install", "-q", "--only-binary", ":all:", "--python", str(python), "--exclude-newer"]
        # A year after a Python came out most packages have wheels for it.
        of_python = f"{int(_PYTHONS[pair.python][:4]) + 1}{_PYTHONS[pair.python][4:]}-01"
        soon, last = (_after(max(day, of_python)) for day in (pair.days[0], max(pair.days)))
        answers = []
        for command in (
            [uv, "venv", "-q", "--python", str(exact / "bin" / "python") if exact else pair.python, str(home / "env")],
            [*install, soon, sides[0], "setuptools<80"],
            [*install, last, sides[1]],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode:
                return record | {"kind": "not installed", "error": done.stderr.strip()[-300:]}
            if command[1] == "pip":
                answers.append(_imported(python, pair))
    except subprocess.TimeoutExpired:
        return record | {"kind": "not installed", "error": "it took too long"}
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return record | _judged(pair, [*sides, f"python=={pair.python}"], *answers)


def _after(day: str) -> str:
    return (dt.date.fromisoformat(day) + dt.timedelta(days=2)).isoformat()


def _imported(python: Path, pair: ForcedPair) -> Mapping[str, Any]:
    command = [str(python), "-c", _RUNNER, pair.user, pair.offering]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=python.parent)
    line = next((line for line in done.stdout.splitlines() if line.startswith("@@")), "@@{}")
    return json.loads(line[2:])  # type: ignore[no-any-return]


def _judged(
    pair: ForcedPair, sides: list[str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, object]:
    """Return what breaks with the forced release and did not before, the shortest module first."""
    found = after.get("found", {})
    sound = [name for name, answer in before.get("found", {}).items() if not answer]
    if not found or next(iter(before.get("found", {})), "") not in sound[:1]:
        return {"kind": "not judged", "error": str(next(iter(before.get("found", {}).values()), ""))[:300]}
    broken = [name for name in sound if found.get(name)]
    if not broken:
        return {"kind": "works", "bad": [], "good": sides, "modules": len(sound)}
    answer = found[broken[0]]
    own = {f"{root}.py" for roots in after["roots"] for root in roots} | {r for roots in after["roots"] for r in roots}
    kind = _kind(answer["error"])
    where = {"module": broken[0], "modules": len(broken), "error": answer["error"]}
    absent = re.findall(r"No module named '(\w+)", answer["error"])
    if {*answer["frames"], *absent} - own - sys.stdlib_module_names:
        return {"kind": "third", **where, "frames": sorted({*answer["frames"]})}
    side = "at import" if "." not in broken[0] else "in a module"
    refused = "" if pair.is_declared else ", refused"
    return {"kind": f"{kind} {side}{refused}", "bad": sides, "culprit": [pair.user, pair.offering], **where}


def _kind(error: str) -> str:
    last = error.split(" | ", maxsplit=1)[0]
    if re.search(
        r"numpy\.core\.multiarray failed|dtype size changed|compiled using NumPy|undefined symbol|ABI|_ARRAY_API", error
    ):
        return "abi"
    if re.search("unexpected keyword|required positional|positional arguments? but", last):
        return "argument"
    if last.startswith(_NOT_ABOUT_NAMES):
        return "member" if "object has no attribute" in last else "name"
    return "behaviour"
