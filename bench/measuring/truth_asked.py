"""`asked`: differences of neighbouring releases that nobody measured, as Python's messages, and what doctor says of them.

Labels are read by `ast` from whole wheels. A difference is drawn only where that reading is sure: no star import, no
module that makes names, no base that is of another package.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.doctor.asked_index import AskedIndex
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.lock.index.index import IndexFile, PackageIndex, quick_index
from envsmith.model.project_name import normal_name

# Packages that no table of matrix/names has, with the module that people import.
PACKAGES = {
    "albumentations": "albumentations",
    "botorch": "botorch",
    "catalyst": "catalyst",
    "chex": "chex",
    "distrax": "distrax",
    "dm-haiku": "haiku",
    "fastai": "fastai",
    "flax": "flax",
    "gensim": "gensim",
    "gpytorch": "gpytorch",
    "gym": "gym",
    "gymnasium": "gymnasium",
    "imgaug": "imgaug",
    "jax": "jax",
    "keras": "keras",
    "kornia": "kornia",
    "langchain": "langchain",
    "langchain-core": "langchain_core",
    "librosa": "librosa",
    "lightgbm": "lightgbm",
    "matplotlib": "matplotlib",
    "monai": "monai",
    "moviepy": "moviepy",
    "networkx": "networkx",
    "nltk": "nltk",
    "open-clip-torch": "open_clip",
    "openai": "openai",
    "optax": "optax",
    "pandas": "pandas",
    "pyannote-audio": "pyannote.audio",
    "pyro-ppl": "pyro",
    "s3prl": "s3prl",
    "scikit-image": "skimage",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "seaborn": "seaborn",
    "segmentation-models-pytorch": "segmentation_models_pytorch",
    "skorch": "skorch",
    "spacy": "spacy",
    "stable-baselines3": "stable_baselines3",
    "statsmodels": "statsmodels",
    "supervision": "supervision",
    "torch-geometric": "torch_geometric",
    "ultralytics": "ultralytics",
    "wandb": "wandb",
    "xgboost": "xgboost",
}
KINDS = ("name", "module", "argument", "member", "type object")
FORMS = ("own", "asker", "package")
_LARGEST = 40 << 20
_TESTS = frozenset({"tests", "test", "testing", "benchmarks", "examples", "docs", "vendor", "_vendor"})
_OPEN = (b"globals()", b"__getattr__", b"sys.modules", b"exec(", b"setattr(", b"LazyModule", b"attach(", b"lazy_")
_PLAIN_BASES = frozenset({"object", "ABC", "abc.ABC", "nn.Module", "torch.nn.Module", "Exception", "ValueError"})
_TRIES = 12


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What the release ``good`` has and its neighbour ``bad`` lacks, of a ``module`` or an ``owner`` in it."""

    package: str
    kind: str
    module: str
    owner: str
    name: str
    good: str
    bad: str
    form: str = ""
    is_stated: bool = False


@dataclass(frozen=True)
class Tree:
    """One module of a wheel."""

    name: str
    source: bytes
    body: list[ast.stmt]
    is_package: bool

    @cached_property
    def bound(self) -> dict[str, ast.stmt]:
        return dict(_bound(self.body))

    @property
    def is_closed(self) -> bool:
        stars = any(
            isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names) for n in _statements(self.body)
        )
        return not stars and not any(word in self.source for word in _OPEN)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """What names of this module stand for in others."""
        above = self.name if self.is_package else self.name.rpartition(".")[0]
        places: dict[str, tuple[str, str]] = {}
        for node in _statements(self.body):
            if isinstance(node, ast.ImportFrom):
                parts = above.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                origin = ".".join(part for part in (base, node.module or "") if part)
                places |= {a.asname or a.name: (origin, a.name) for a in node.names}
        return places


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _statements(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in _statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (((a.asname or a.name).partition(".")[0], node) for a in node.names)
        else:
            stores = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            yield from ((n.id, node) for n in stores)


class Wheel:
    """The modules of one release."""

    def __init__(self, data: bytes, root: str) -> None:
        self.modules: dict[str, Tree] = {}
        self.names: set[str] = set()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for path in archive.namelist():
                name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self.names.add(path.partition(".")[0].replace("/", ".").removesuffix(".__init__"))
                if not path.endswith(".py") or not f"{name}.".startswith(f"{root}.") or _TESTS & {*name.split(".")}:
                    continue
                source = archive.read(path)
                try:
                    body = ast.parse(source).body
                except (SyntaxError, ValueError):
                    continue
                self.modules[name] = Tree(name, source, body, path.endswith("__init__.py"))

    def members(self, module: str, name: str, depth: int = 0) -> tuple[set[str], set[str]] | None:
        """What the class and its objects have, ``None`` where this reading is not sure."""
        tree = self.modules.get(module)
        node = tree.bound.get(name) if tree else None
        if tree and node and isinstance(node, ast.ImportFrom) and depth < 8:
            origin, original = tree.imports.get(name, ("", ""))
            return self.members(origin, original, depth + 1)
        if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords or depth > 8:
            return None
        own = {n for n, _ in _bound(node.body)}
        text = ast.dump(node)
        if {"__getattr__", "__getattribute__"} & own or "'setattr'" in text or "'__dict__'" in text:
            return None
        held = {
            n.attr
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and getattr(n.value, "id", "") == "self"
        }
        held |= {
            str(n.args[0].value)
            for n in ast.walk(node)
            if isinstance(n, ast.Call)
            and n.args
            and isinstance(n.args[0], ast.Constant)
            and getattr(n.func, "attr", "").startswith("register_")
        }
        for base in node.bases:
            written = ast.unparse(base)
            if written in _PLAIN_BASES:
                continue
            inner = self.members(module, written, depth + 1) if isinstance(base, ast.Name) else None
            if inner is None:
                return None
            own, held = own | inner[0], held | inner[1]
        return own, held

    def arguments(self, module: str, name: str) -> set[str] | None:
        """What a function or the constructor of a class takes by name, ``None`` where that is not sure."""
        node = self.modules[module].bound.get(name)
        if isinstance(node, ast.ClassDef):
            if node.keywords or node.decorator_list:
                return None
            node = dict(_bound(node.body)).get("__init__")
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg:
            return None
        return {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}


def differences(package: str, old: tuple[str, Wheel], new: tuple[str, Wheel]) -> Iterator[Difference]:
    """Yield what one of two neighbours has and the other lacks."""
    for (good, having), (bad, lacking) in ((old, new), (new, old)):
        of = partial(Difference, package=package, good=good, bad=bad)
        for module in having.modules.keys() - lacking.names:
            if (
                all(map(str.isidentifier, module.split(".")))
                and module.rpartition(".")[0] in lacking.modules
                and not module.rpartition(".")[2].startswith("_")
            ):
                yield of(kind="module", module=module, owner="", name="")
        for module in having.modules.keys() & lacking.modules.keys():
            mine, theirs = having.modules[module], lacking.modules[module]
            if mine.source == theirs.source or not (mine.is_closed and theirs.is_closed):
                continue
            for name in mine.bound.keys() - theirs.bound.keys():
                if not name.startswith("_") and f"{module}.{name}" not in lacking.names:
                    yield of(kind="name", module=module, owner="", name=name)
            for owner in mine.bound.keys() & theirs.bound.keys():
                if owner.startswith("_"):
                    continue
                one, other = having.arguments(module, owner), lacking.arguments(module, owner)
                if one is not None and other is not None:
                    yield from (of(kind="argument", module=module, owner=owner, name=n) for n in one - other)
                if not isinstance(mine.bound[owner], ast.ClassDef):
                    continue
                first, second = having.members(module, owner), lacking.members(module, owner)
                if first and second:
                    every = second[0] | second[1]
                    of_class = first[0] - every
                    yield from (
                        of(kind="type object", module=module, owner=owner, name=n) for n in of_class if _is_name(n)
                    )
                    of_object = (first[0] | first[1]) - every
                    yield from (of(kind="member", module=module, owner=owner, name=n) for n in of_object if _is_name(n))


def _is_name(text: str) -> bool:
    return text.isidentifier() and not text.startswith("__") and text not in {"self", "cls"}


def draw(index: PackageIndex, seed: int, each: int, packages: Sequence[str]) -> Iterator[Difference]:
    """Yield up to ``each`` differences of every package, of pairs of neighbours drawn at random."""
    for package in packages:
        chance = random.Random(f"{seed} {package}")
        files = _files(index, package)
        versions = [*files]
        drawn: list[Difference] = []
        for _ in range(_TRIES):
            if len(drawn) >= each or len(versions) < 2:
                break
            at = chance.randrange(len(versions) - 1)
            pair = [(v, _wheel(index, files[v], PACKAGES[package])) for v in versions[at : at + 2]]
            by_kind: dict[str, list[Difference]] = defaultdict(list)
            for difference in sorted(differences(package, *pair), key=str):
                by_kind[difference.kind].append(difference)
            drawn += [chance.choice(found) for found in by_kind.values()]
        chance.shuffle(drawn)
        for difference in drawn[:each]:
            forms = FORMS if difference.kind in {"argument", "member"} else FORMS[:2]
            fields = asdict(difference) | {"form": chance.choice(forms), "is_stated": chance.random() < 0.5}
            yield Difference(**fields)


def _files(index: PackageIndex, package: str) -> dict[str, IndexFile]:
    """The wheels of the final releases of the last seven years, one each."""
    chosen: dict[str, IndexFile] = {}
    for version, files in index.project(package).releases().items():
        wheels = [f for f in files if f.is_wheel and ("-any" in f.filename or "linux" in f.filename)]
        wheels = [f for f in wheels if "aarch64" not in f.filename and (f.size or 0) < _LARGEST]
        if wheels and not Version(version).is_prerelease and (wheels[0].day or "") > "2019-11-28":
            chosen[version] = min(wheels, key=lambda f: (f.size or 0, f.filename))
    return chosen


def _wheel(index: PackageIndex, file: IndexFile, root: str) -> Wheel:
    return Wheel(index.fetcher.get(file.url, max_bytes=_LARGEST, keep=False).body, root)


def text_of(each: Difference) -> str:
    """Write what a person would paste. The package is told by a path, an import, a call or a list of versions."""
    last = each.owner or each.name
    path = f"/env/lib/python3.10/site-packages/{each.module.replace('.', '/')}"
    imported = f"from {each.module} import {last}"
    if each.kind == "name":
        code, error = imported, f"ImportError: cannot import name '{each.name}' from '{each.module}' ({path}.py)"
    elif each.kind == "module":
        code, error = f"import {each.module}", f"ModuleNotFoundError: No module named '{each.module}'"
    elif each.kind == "argument":
        is_class = each.owner[:1].isupper()
        called = f"{each.owner}.__init__" if is_class and len(each.name) % 2 else "__init__" if is_class else each.owner
        code = f"thing = {each.owner}({each.name}=value)"
        error = f"TypeError: {called}() got an unexpected keyword argument '{each.name}'"
    elif each.kind == "member":
        code = f"return self.{each.name}" if each.form == "package" else f"print(thing.{each.name})"
        error = f"AttributeError: '{each.owner}' object has no attribute '{each.name}'"
    else:
        code, error = (
            f"way = {each.owner}.{each.name}",
            f"AttributeError: type object '{each.owner}' has no attribute '{each.name}'",
        )
    lines = ["Traceback (most recent call last):", '  File "/home/me/project/train.py", line 12, in <module>']
    if each.form == "own":
        lines += [f"    {code}"]
    else:
        file = "/env/lib/python3.10/site-packages/companion/build.py" if each.form == "asker" else f"{path}.py"
        lines += ["    main()", f'  File "{file}", line 40, in build', f"    {code}"]
    stated = [f"{each.package}=={each.bad}"] if each.is_stated else []
    needs_import = each.kind not in {"name", "module"} and not each.is_stated and each.form != "package"
    return "\n".join([*stated, *([imported] if needs_import else []), *lines, error])


def verdict_of(each: Difference, longest: float) -> tuple[str, str]:
    """Ask doctor, and say whether the releases that it names take the good one and leave the bad one out."""
    text = text_of(each)
    index = AskedIndex(quick_index, lambda _: None, longest=longest)
    diagnosis = diagnose(read_texts([("log", text)]), [("log", text)], published=lambda: index)
    first = diagnosis.root or next(iter(diagnosis.diagnosed), None)
    if first is None:
        return "silent", "nothing"
    needs: dict[str, str] = {normal_name(name): spec for name, spec in first.finding.needs.items()}
    line = f"{first.finding.severity.value} {first.finding.rule} {needs} {first.finding.message[:200]}"
    if each.package not in needs:
        claims = first.finding.rule == "name-in-no-release" or first.finding.message.startswith(("Every", "Each of"))
        return ("false" if needs or claims else "silent"), line
    spec = SpecifierSet(needs[each.package])
    if spec.contains(each.bad):
        return "false", line
    return ("right" if spec.contains(each.good) else "narrow"), line


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=4, help="differences of a package")
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help="only of this one (repeatable)")
    parser.add_argument("--draw", type=Path, help="a file of differences: written where it is not there, else read")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="of N runs that share one draw, the K-th")
    parser.add_argument("--longest", type=float, default=10.0, help="seconds of a question (more on a busy machine)")
    parser.add_argument("--show", action="store_true", help="every answer that is not right")


def run(options: argparse.Namespace) -> int:
    """Draw, ask, compare, print. 1 when a release is named that lacks what is asked."""
    if options.draw and options.draw.is_file():
        drawn = [Difference(**json.loads(line)) for line in options.draw.read_text().splitlines()]
    else:
        drawn = [*draw(quick_index(), options.seed, options.each, options.package or [*PACKAGES])]
        if options.draw:
            options.draw.write_text("".join(json.dumps(asdict(each)) + "\n" for each in drawn))
    part, parts = map(int, options.part.split("/"))
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: list[float] = []
    before = time.process_time()
    for each in drawn[part - 1 :: parts]:
        started = time.monotonic()
        verdict, line = verdict_of(each, options.longest)
        seconds.append(time.monotonic() - started)
        for group in ("all", each.kind, each.form, "stated" if each.is_stated else "not stated"):
            tallies[group][verdict] += 1
        if options.show and verdict != "right":
            print(f"{verdict}, {seconds[-1]:.1f} s: {asdict(each)}\n    {line}", flush=True)
    print(_table(tallies))
    seconds.sort()
    if seconds:
        half, most = seconds[len(seconds) // 2], seconds[len(seconds) * 9 // 10]
        of_cpu = (time.process_time() - before) / len(seconds)
        print(f"seconds: half in {half:.1f}, nine of ten in {most:.1f}; of CPU {of_cpu:.1f} each")
    return 1 if tallies["all"]["false"] else 0


def _table(tallies: Mapping[str, Counter[str]]) -> str:
    verdicts = ("right", "narrow", "silent", "false")
    rows = [f"{group:<12}" + "".join(f"{tally[v]:>8}" for v in verdicts) for group, tally in tallies.items()]
    return "\n".join([f"{'':<12}" + "".join(f"{v:>8}" for v in verdicts), *rows])
