"""Names asked of the index and of a real import: a seeded draw, an environment a release, the share that is right.

An environment holds one release of a package and what it requires, without torch: that comes from an interpreter that
has it. Half of the questions are about what the drawn release has, half about what only other releases have. What a
release cannot import here for another reason (another library is too new, a GPU is missing) is counted, not judged.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.names_file import NamesFile

# What can be imported without a GPU, without compiling and without a checkout.
PACKAGES = [
    "accelerate",
    "trl",
    "peft",
    "transformers",
    "datasets",
    "huggingface-hub",
    "numpy",
    "pydantic",
    "setuptools",
    "packaging",
    "einops",
    "safetensors",
    "tokenizers",
    "diffusers",
    "lightning",
    "pytorch-lightning",
    "deepspeed",
    "megatron-core",
    "liger-kernel",
    "torchdata",
    "tensordict",
    "bitsandbytes",
    "megatron-energon",
    "torchtitan",
    "llamafactory",
    "verl",
    "torchao",
    "ray",
    "ms-swift",
    "colossalai",
    "nvidia-modelopt",
    "axolotl",
    "openrlhf",
    "nemo-toolkit",
    "megatron-bridge",
    "torchvision",
    "triton",
    "xformers",
    "torch",
]
# What most modules of a package import and its METADATA does not ask for.
_BESIDE = {
    "diffusers": ("transformers",),
    "liger-kernel": ("transformers",),
    "accelerate": ("transformers",),
    "deepspeed": ("transformers",),
    "megatron-core": ("transformers", "einops"),
}
_SECONDS = 900

_RUNNER = r"""
import importlib, inspect, json, re, sys, warnings
warnings.simplefilter("ignore")

class Elsewhere(Exception): pass

def module(path):
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(error.name + ".")):
            return None
        raise Elsewhere(repr(error))
    except BaseException as error:
        raise Elsewhere(repr(error))

def reach(root, steps):
    # Yields what the path names: as attributes, and where a module has the name of what its package binds, as the module.
    place = module(root)
    if place is None: raise Elsewhere("no " + root)
    places, at = [(place, False)], root
    for step in steps:
        at += "." + step
        found = []
        for place, _ in places:
            try:
                value = getattr(place, step)
            except AttributeError:
                if inspect.isclass(place) and instance(place, step): found.append((None, False))
                continue
            except BaseException as error:
                raise Elsewhere(repr(error))
            plain = inspect.isclass(place) and inspect.isfunction(value) and not is_static(place, step)
            found.append((value, plain))
        if any(inspect.ismodule(p) for p, _ in places):
            try: below = module(at)
            except Elsewhere:
                if not found: raise
                below = None
            found += [(below, False)] if below is not None and not any(below is value for value, _ in found) else []
        places = found
    return places

def is_static(cls, name):
    return any(isinstance(base.__dict__.get(name), staticmethod) for base in cls.__mro__)

def instance(cls, name):
    for base in cls.__mro__:
        if name in base.__dict__.get("__annotations__", {}): return True
        try: text = inspect.getsource(base)
        except Exception: continue
        if re.search(r"self\.%s\b[^=\n]*=|register_\w+\(\s*['\"]%s['\"]" % (name, name), text): return True
    return False

def judge(question):
    places = reach(question["root"], question["steps"])
    word = question["argument"]
    if word is None: return "present" if places else "absent"
    answers = {accepts(place, plain, word) for place, plain in places if place is not None}
    return next((a for a in ("present", "open") if a in answers), "absent")

def accepts(place, plain, word):
    try: signature = inspect.signature(place)
    except Exception as error: raise Elsewhere(repr(error))
    kinds = {p.name: p.kind for p in list(signature.parameters.values())[plain:]}
    if word in kinds and kinds[word] in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY): return "present"
    return "open" if inspect.Parameter.VAR_KEYWORD in kinds.values() else "absent"

for line in sys.stdin:
    question = json.loads(line)
    try: answer = judge(question)
    except Elsewhere as error: answer = "elsewhere " + str(error)[:160]
    print("@@" + json.dumps({"id": question["id"], "answer": answer}), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Release:
    name: str
    version: str
    day: dt.date
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """One name, member or argument of one release. ``root`` is importable, ``steps`` follow.

    ``is_optional``: the release binds the name only where something optional is installed.
    """

    distribution: str
    version: str
    root: str
    steps: tuple[str, ...]
    argument: str | None
    is_optional: bool = False

    @property
    def path(self) -> str:
        return ".".join([self.root, *self.steps])


def draw(
    folder: Path, seed: int, environments: int, count: int, torch: dict[str, Path], *, packages: Sequence[str] = ()
) -> dict[tuple[str, str], list[Question]]:
    """Draw releases, and of each as many questions about what it has as about what it lacks."""
    chance = random.Random(seed)
    names = [n for n in packages or PACKAGES if (folder / f"{n}.names").is_file() and (n != "torch" or torch)]
    drawn: dict[tuple[str, str], list[Question]] = {}
    each = -(-count // environments)
    while len(drawn) < environments:
        name = names[len(drawn) % len(names)] if len(drawn) < len(names) else chance.choice(names)
        file = NamesFile(folder / f"{name}.names")
        versions = [m.version for m in file.head.releases]
        possible = [v for v in versions if v in torch] if name == "torch" else versions
        if not possible:
            names.remove(name)
            continue
        version = chance.choice(possible)
        drawn.setdefault((name, version), _questions(file, version, each, chance))
    return drawn


def _questions(file: NamesFile, version: str, count: int, chance: random.Random) -> list[Question]:
    at = [m.version for m in file.head.releases].index(version)
    root = file.head.roots[0]
    table = file.table()
    having: list[Question] = []
    lacking: list[Question] = []
    modules = sorted(m for m in table if f"{m}.".startswith(f"{root}.") and table[m][""] >> at & 1)
    gone = sorted(m for m in table if f"{m}.".startswith(f"{root}.") and not table[m][""] >> at & 1)
    for kind in range(40 * count if modules else 0):
        if len(having) >= count // 2 and len(lacking) >= count - count // 2:
            break
        if gone and kind % 10 == 9:
            question = Question(
                distribution=file.head.distribution,
                version=version,
                root=root,
                steps=tuple(chance.choice(gone)[len(root) + 1 :].split(".")),
                argument=None,
            )
            lacking.append(question)
            continue
        module = chance.choice(modules)
        found = _of_module(file, version, module, table[module], chance)
        if found is not None:
            (having if found[1] else lacking).append(found[0])
    chance.shuffle(having)
    chance.shuffle(lacking)
    return having[: count // 2] + lacking[: count - count // 2]


def _is_mangled(name: str) -> bool:
    """Return whether Python renames the member of a class."""
    last = name.rpartition(".")[2]
    return last.startswith("__") and not last.endswith("__")


def _of_module(
    file: NamesFile, version: str, module: str, lines: dict[str, int], chance: random.Random
) -> tuple[Question, bool] | None:
    root = file.head.roots[0]
    at = [m.version for m in file.head.releases].index(version)
    present = {line.partition(" ")[0] for line, bits in lines.items() if bits >> at & 1}
    everything = sorted(line for line in lines if line and not line.startswith("*") and "^" not in line)
    wanted = chance.random() < 0.5
    usable = [
        x for x in everything if (x.partition(" ")[0] in present) is wanted and not x.partition(" ")[0].endswith("*")
    ]
    if not wanted and chance.random() < 0.5:  # an argument of a function that the release has in another form
        usable = [x for x in everything if not lines[x] >> at & 1 and x.partition(" ")[0] in present and "(" in x]
    usable = [x for x in usable if not _is_mangled(x.partition(" ")[0])]
    if not usable:
        return None
    line = chance.choice(usable)
    name, _, body = line.partition(" ")
    steps = [*module[len(root) + 1 :].split("."), *name.split(".")] if module != root else name.split(".")
    argument = None
    if "(" in body and (chance.random() < 0.5 or not wanted):
        words = [w.rstrip("=") for w in body.partition("(")[2].split(",") if w.rstrip("=").isidentifier()]
        argument = chance.choice(words) if words else None
        if argument and steps[-1] == "__init__":
            steps.pop()
    bodies = [x.partition(" ")[2] for x, bits in lines.items() if bits >> at & 1 and x.partition(" ")[0] == name]
    return Question(
        distribution=file.head.distribution,
        version=version,
        root=root,
        steps=tuple(steps),
        argument=argument,
        is_optional=bool(bodies) and all(text.startswith("?") for text in bodies),
    ), wanted


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--environments", type=int, default=25)
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help="only of this one (repeatable)")
    parser.add_argument("--index", type=Path, default=find_matrix() / "names")
    parser.add_argument("--torch", action="append", default=[], metavar="RELEASE=PYTHON")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--part", default="1/1", metavar="K/N", help="of N runs that share one draw, the K-th")


def run(options: argparse.Namespace) -> int:
    """Ask, import, compare, print. 1 when an answer is wrong."""
    folder, seed, scratch = options.index, options.seed, options.scratch
    torch = {release: Path(python) for release, _, python in (word.partition("=") for word in options.torch)}
    index = NameIndex(folder)
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    drawn = draw(folder, seed, options.environments, options.count, torch, packages=options.package)
    part, parts = map(int, options.part.split("/"))
    for (name, version), questions in list(drawn.items())[part - 1 :: parts]:
        day = next(m.date for m in NamesFile(folder / f"{name}.names").head.releases if m.version == version)
        release = Release(name=name, version=version, day=dt.date.fromisoformat(day))
        answers = dict(_imported(release, questions, torch, scratch))
        tally: Counter[str] = Counter()
        for at, question in enumerate(questions):
            verdict, line = _compared(index, question, answers.get(at, "elsewhere: no answer"))
            tally[verdict] += 1
            if verdict != "right":
                wrong.append(f"{verdict}: {line}")
        verdicts += tally
        print(f"{name} {version}: {dict(tally)}", flush=True)
    for line in sorted(wrong):
        print(line)
    judged = verdicts["right"] + verdicts["wrong"]
    share = 100 * verdicts["right"] / judged if judged else 0.0
    print(f"seed {seed}: {dict(verdicts)}; right of those judged and not unknown: {share:.2f} %")
    return 1 if verdicts["wrong"] else 0


def _compared(index: NameIndex, question: Question, answer: str) -> tuple[str, str]:
    presence = index.ask(question.path, question.argument, distribution=question.distribution)
    assert presence is not None
    version = question.version
    said = "present" if version in presence.present else "absent" if version in presence.absent else "unknown"
    line = f"{question.distribution} {version} {question.path} ({question.argument}): index {said}, import {answer}"
    if answer.startswith("elsewhere") or (question.is_optional and answer == "absent" and said == "present"):
        return "not judged", line
    if said == "unknown":
        return "unknown", line
    if answer == "open":
        return ("wrong", line) if said == "absent" else ("right", line)
    return ("right" if said == answer else "wrong"), line


def _imported(
    release: Release, questions: list[Question], torch: dict[str, Path], scratch: Path
) -> Iterator[tuple[int, str]]:
    """Yield what a real import says. An interpreter that dies is started again after the question that killed it."""
    home = Path(tempfile.mkdtemp(prefix=f"{release.name}-", dir=scratch))
    try:
        python = environment(home, release, torch)
        if python is None:
            yield from ((at, "elsewhere: it cannot be installed") for at in range(len(questions)))
            return
        rows = [{"id": at, "root": q.root, "steps": q.steps, "argument": q.argument} for at, q in enumerate(questions)]
        while rows:
            answers = _answers(python, rows)
            yield from answers.items()
            rows = [row for row in rows if row["id"] not in answers][1:]
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _answers(python: Path, rows: Sequence[Mapping[str, object]]) -> dict[int, str]:
    text = "\n".join(json.dumps(row) for row in rows)
    try:
        done = subprocess.run(
            [python, "-c", _RUNNER],
            input=text,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            cwd=python.parent,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else ""
    answers = [json.loads(line[2:]) for line in output.splitlines() if line.startswith("@@")]
    return {row["id"]: row["answer"] for row in answers}


def environment(home: Path, release: Release, torch: dict[str, Path]) -> Path | None:
    """Return the interpreter of a new environment: the release, what it requires as of its day, torch of its time.

    What stands beside it is installed whatever the release declares of it.
    """
    if release.name == "torch":
        return torch[release.version]
    override = home / "override.txt"
    fixed = ["torch; python_version < '3'", "triton; python_version < '3'", *release.beside]
    override.write_text("".join(f"{line}\n" for line in fixed))
    python = home / "env" / "bin" / "python"
    newest = (release.day + dt.timedelta(days=30)).isoformat()
    options = ["--override", str(override), "--exclude-newer", newest]
    options += ["--no-build-isolation"] if release.name == "deepspeed" else []
    beside = {"setuptools", "packaging", *_BESIDE.get(release.name, ())} - {release.name}
    named = [f"{release.name}=={release.version}", *release.beside, *sorted(beside)]
    commands = [
        ["uv", "venv", "-q", "--python", "3.11", str(home / "env")],
        ["uv", "pip", "install", "-q", "--python", str(python), *options, *named],
    ]
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if result.returncode:
            print(f"{release.name} {release.version}: {result.stderr.strip().splitlines()[-1:]}", flush=True)
            return None
        _link_torch(python, release.day, torch)
    return python


def _link_torch(python: Path, day: dt.date, torch: dict[str, Path]) -> None:
    """Put torch on the path: the newest that was there half a year after that day, else the oldest."""
    days = {m.version: m.date for m in NamesFile(find_matrix() / "names" / "torch.names").head.releases}
    limit = (day + dt.timedelta(days=180)).isoformat()
    fitting = [python for version, python in torch.items() if days.get(version, "9") <= limit]
    chosen = (fitting or list(torch.values()))[-1 if fitting else 0]
    site = next((chosen.parent.parent / "lib").glob("python3*")) / "site-packages"
    target = next((python.parent.parent / "lib").glob("python3*")) / "site-packages" / "torch-of-another.pth"
    target.write_text(f"{site}\n")
