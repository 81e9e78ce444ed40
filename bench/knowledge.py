"""How much of a corpus of real bug reports ``envsmith check`` sees in the environment alone: caught, missed, false alarms; per cause.

    python bench/knowledge.py CORPUS.jsonl [--cells FILE.yaml] [--peers] [--pip N] [--json] [--show]

A record's ``env`` is turned into components by one parser (:func:`read_env`); log lines, title and answer are not read. Two rounds:

``env only``
    what the reporter wrote down.
``env+culprit``
    the same, and where a component that the ``culprit`` names has no version in ``env``, one version inside the culprit's range:
    the release nearest to the bound that the range names (``<=0.14.0`` is 0.14.0, ``<11.1`` the newest one below it, ``>=2.4`` is
    2.4.0). It stands for what the reporter had and did not write down; this round asks whether the rule is known.

A record is caught when one error or warning names every component of its culprit (torch and the CUDA it is built with count as one; a
culprit inside a framework is that framework); a component that is only known to be there counts for any release of it. Records whose culprit has no component (a variable, a limit, a tool, ssh) are no matter of
versions: they are counted apart, and ``doctor`` judges them on the same structured facts. A false alarm is an error on a negative record
or on a cell that its framework's own CI runs or ships; warnings on those are counted beside.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.judge import diagnose
from envsmith.doctor.signatures import rule_taxonomy
from envsmith.model.finding import Finding, Judgement
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, parse_version, version_key
from envsmith.solve.api import check, default_solver
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.lines import read_lines
from envsmith.sources.reports.names import component_of, gpu_table
from envsmith.sources.reports.words import gpu_architecture, local_cuda

KEYS = {"system_cuda": "toolkit", "torch_cuda": "cuda", "gpu_arch": "gpu", "gpu": "gpu"}
# What people call components in prose, longest first where one contains another; `megatron` alone stands for its library.
PROSE = {
    "cuda toolkit": "toolkit",
    "system cuda": "toolkit",
    "nvcc": "toolkit",
    "toolkit": "toolkit",
    "nvidia driver": "driver",
    "driver": "driver",
    "transformer_engine": "transformer-engine",
    "transformer-engine": "transformer-engine",
    "flash-attn": "flash-attn",
    "deepspeed": "deepspeed",
    "colossalai": "colossalai",
    "megatron": "megatron-core",
    "torch": "torch",
    "gcc": "gcc",
    "apex": "apex",
    "nccl": "nccl",
    "cudnn": "cudnn",
    "triton": "triton",
    "python": "python",
    "numpy": "numpy",
    "accelerate": "accelerate",
    "transformers": "transformers",
}
_NUMBER = r"[vV]?\d{1,5}(?:\.\d{1,9}){0,4}(?:\.?(?:a|b|rc|dev|post)\d{0,12})?(?:\+[A-Za-z0-9][\w.]{0,40})?"
_TOKEN = re.compile(rf"([<>=!~]{{1,2}})?\s*(?<![\w.])({_NUMBER})(\.x\b|x\b|\+(?!\w))?(?![\w])")
_SPAN = re.compile(rf"(?<![\w.])({_NUMBER})\s*-\s*({_NUMBER})(?![\w-])")
_DATE = re.compile(r"\b(?:19|20)\d\d-\d\d(?:-\d\d)?\b|\bcommit\s+\w+|\bPR\s+\d+")
_SIZE = re.compile(r"\d[\d.]*\s?[GM]i?B\b")


# --- reading ---------------------------------------------------------------------------------------------------------------------------


def versions_in(component: str, text: str) -> tuple[str, ...]:
    """The versions that a text of an environment stands for: one, the alternatives of a list, or one inside a stated range."""
    if component == "gpu":
        return _gpus(text)
    if component == "driver" and (level := re.search(r"CUDA (\d+\.\d+)", text)):
        return _driver_of(level[1])
    plain = re.sub(r"\([^)]*\)", " ", text)
    found = _listed(component, plain) or _listed(component, text)
    if component == "gcc" and not found and (tools := re.search(r"toolset-(\d+)", text)):
        return (tools[1],)
    return found


def _listed(component: str, text: str) -> tuple[str, ...]:
    text = _SIZE.sub(" ", _DATE.sub(" ", text))
    if span := _SPAN.search(text):
        return one_inside(component, f">={span[1]},<={span[2]}")
    bounds, exact = [], []
    for match in _TOKEN.finditer(text):
        operator, number, tail = match[1] or "", match[2].lstrip("vV"), match[3] or ""
        if tail.endswith("x"):
            bounds.append(f"=={number}.*")
        elif tail == "+":
            bounds.append(f">={number}")
        elif operator and operator != "==":
            bounds.append(operator + number)
        else:
            exact.append(number)
    if bounds:
        return one_inside(component, ",".join(dict.fromkeys(bounds)))
    return tuple(v for v in dict.fromkeys(exact) if _is_version(v))[:4]


def _is_version(text: str) -> bool:
    try:
        return bool(parse_version(text))
    except ValueError:
        return False


def _gpus(text: str) -> tuple[str, ...]:
    if numbers := re.findall(r"\b(?:sm|compute)_(\d{2,3})\b", text):
        return tuple(dict.fromkeys(f"sm_{n}" for n in numbers))
    if match := re.fullmatch(r"\s*(\d{1,2})\.(\d)\s*", text):
        return (f"sm_{match[1]}{match[2]}",)
    known = gpu_architecture(text, gpu_table())
    return (known,) if known else ()


def _driver_of(level: str) -> tuple[str, ...]:
    """The newest driver that shows this CUDA level: all that the reporter's driver can be and not more."""
    releases = default_solver().knowledge().releases["driver"]
    found = [r.version for r in releases if r.facts.get("cuda_shown") == level]
    return (found[-1],) if found else ()


def one_inside(component: str, text: str) -> tuple[str, ...]:
    """The release inside a range that lies nearest to the bound it names; a number beside the bound where no releases are listed."""
    try:
        spec = Spec.parse(text)
    except ValueError:
        return ()
    listed = [v for v in default_solver().compiled.versions.get(component, ()) if spec.contains(v)]
    stable = [v for v in listed if (key := version_key(v)) is not None and not key.is_prerelease]
    public = list(dict.fromkeys(v.split("+")[0] for v in stable or listed))
    upper = "<" in text or "==" in text
    if public:
        return (public[-1] if upper else public[0],)
    number = re.findall(_NUMBER, text)[-1 if upper else 0]
    return tuple(v for v in (number, *_beside(number)) if _is_version(v) and spec.contains(v))[:1]


def _beside(number: str) -> list[str]:
    parts = [int(p) for p in re.findall(r"\d+", number)[:4]]
    lower = parts.copy()
    for place in reversed(range(len(lower))):
        if lower[place]:
            lower[place] -= 1
            break
    return [".".join(map(str, [*parts, 1])), ".".join(map(str, lower))]


@dataclass(slots=True)
class Told:
    """What one record tells: versions (several where it names alternatives), components said to be absent, all facts for the doctor."""

    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    facts: Draft = field(default_factory=Draft)
    platform: Platform = Platform.LINUX_64

    def sets(self) -> list[dict[str, str]]:
        """One set per alternative; a component with one version is in all of them."""
        rows = zip_longest(*self.versions.values())
        first = {name: found[0] for name, found in self.versions.items()}
        return [
            {name: version or first[name] for name, version in zip(self.versions, row, strict=True)} for row in rows
        ][:4]


def read_env(env: Mapping[str, Any]) -> Told:
    """A record's structured environment as components and facts."""
    told = Told()
    fields = {str(k): str(v) for k, v in env.items() if v is not None}
    framework = component_of(fields.get("framework", ""))
    if framework and (found := versions_in(framework, fields.get("framework_version", ""))):
        told.versions[framework] = found
    for key, value in fields.items():
        name = KEYS.get(key) or component_of(key)
        if name and (found := versions_in(name, value)):
            told.versions.setdefault(name, found)
        if key not in {"framework", "framework_version"}:
            read_lines(f"{key}: {value}", told.facts, "env")
    if match := re.search(r"glibc(\d+\.\d+)", fields.get("os", "")):
        told.versions.setdefault("glibc", (match[1],))
    if "aarch64" in fields.get("arch", "") + fields.get("os", ""):
        told.platform = Platform.LINUX_AARCH64
    if framework:
        told.versions.setdefault(framework, ("*",))
    _settle(told)
    return told


def _settle(told: Told) -> None:
    """What torch's build tag says of CUDA is not asked twice; Python is asked by its minor."""
    torch = told.versions.get("torch", ())
    if torch and any(local_cuda(v) for v in torch):
        told.versions.pop("cuda", None)
    for name, found in told.versions.items():
        if found[0] != "*":
            told.facts.component(name, found[0], "env", 3)


def add_culprit(told: Told, culprit: Mapping[str, str]) -> tuple[str, ...]:
    """Fill what ``env`` left unsaid with a version inside the culprit's ranges; the names that were filled."""
    filled = []
    for name, text in _ranges(culprit):
        found = versions_in(name, text)
        if found and told.versions.get(name, ("*",)) == ("*",):
            told.versions[name] = found[:1]
            told.facts.component(name, found[0], "culprit", 2)
            filled.append(name)
    for name in culprits({"culprit": culprit}) - {"torch", "gpu"}:
        told.versions.setdefault(name, ("*",))
    component = culprit.get("component", "")
    for tool in re.findall(r"(ninja|nvcc|cuda toolkit)\b.{0,12}\bmissing", component):
        told.facts.tools["nvcc" if tool != "ninja" else tool] = None
    if re.search(r"\bbf16\b", component):
        told.facts.launch("deepspeed-config", {"bf16.enabled": "true"}, "bf16")
    if "/dev/shm" in component:
        told.facts.limits["shm"] = 64 << 20  # docker's default, which every such report has
    return tuple(filled)


def _ranges(culprit: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """``(component, text with its range)`` of a culprit, from its keys and from its prose."""
    for key, value in culprit.items():
        name = KEYS.get(key) or PROSE.get(key) or component_of(key)
        if name and key not in {"component", "range"}:
            yield name, _newest(name) if value == "any" else value
    prose = culprit.get("component", "")
    low = prose.lower()
    for words, name in PROSE.items():
        if match := re.search(rf"\b{words}\b\s*((?:[<>=]{{1,2}}\s*)?\d[\w.+]*)", low):
            yield name, match[1]
    if match := re.search(r"\bcu(\d{2})(\d)\b", low):
        yield "cuda", f"{match[1]}.{match[2]}"
    both = f"{prose} {culprit.get('range', '')}"
    if re.search(r"\b(?:sm|compute)_\d", both):
        yield "gpu", both
    named = [name for words, name in PROSE.items() if re.search(rf"\b{words}\b", low)]
    if named and "range" in culprit:
        yield named[0], re.sub(r"\bwith (?:sm|compute)_\d+", "", culprit["range"])


def _newest(component: str) -> str:
    listed = default_solver().compiled.versions.get(component, ())
    return listed[-1] if listed else ""


def culprits(record: Mapping[str, Any]) -> frozenset[str]:
    """The components that the culprit names; none of them when it is no matter of versions."""
    culprit = {k: str(v) for k, v in (record.get("culprit") or {}).items()}
    names = {KEYS.get(k) or PROSE.get(k) or component_of(k) for k in culprit if k not in {"component", "range"}}
    prose = f"{culprit.get('component', '')} {culprit.get('range', '')}".lower()
    matter = re.search(r"\d|[<>=]", prose) and not re.search(r"unset|p2p|p2p_disable", prose)
    names |= {PROSE.get(prose.strip())}
    if matter:
        names |= {name for words, name in PROSE.items() if re.search(rf"\b{words}\b", prose)}
        names |= {"cuda"} if re.search(r"\bcu\d{3}\b", prose) else set()
        names |= {"gpu"} if re.search(r"\b(?:sm|compute)_\d", prose) else set()
    return frozenset("torch" if n == "cuda" else n for n in names if n)


# --- judging ---------------------------------------------------------------------------------------------------------------------------


def judge_sets(told: Told) -> list[Judgement]:
    """``check`` on every alternative."""
    return [check(given, told.platform) for given in told.sets()]


def grave(judgements: Iterable[Judgement], *, worst: bool = False) -> list[Finding]:
    """Errors and warnings, or errors alone."""
    wanted = {Severity.ERROR} if worst else {Severity.ERROR, Severity.WARNING}
    return [f for j in judgements for f in j.findings if f.severity in wanted]


def names_culprit(findings: Iterable[Finding], wanted: frozenset[str]) -> str | None:
    """The rule of the first finding that names every component of the culprit."""
    for finding in findings:
        named = {"torch" if n == "cuda" else n for n in finding.components}
        if wanted and wanted <= named:
            return finding.rule
    return None


def by_doctor(diagnosis: Diagnosis, record: Mapping[str, Any]) -> str | None:
    """The rule of the doctor's first error or warning of the record's cause."""
    for found in diagnosis.found:
        if found.finding.severity is not Severity.NOTE and found.taxonomy.cause == record["cause_key"]:
            return found.finding.rule
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One record judged. ``env``, ``filled``, ``doctor`` hold the rule that caught it, or ``None``."""

    record: Mapping[str, Any]
    wanted: frozenset[str]
    told: Mapping[str, tuple[str, ...]]
    env: str | None
    filled: str | None
    error: bool
    exact: bool
    doctor_env: str | None
    doctor: str | None
    reason: str
    findings: tuple[Finding, ...]
    sets: tuple[Mapping[str, str], ...]


def judge(record: Mapping[str, Any]) -> Row:
    wanted = culprits(record)
    plain = read_env(record.get("env") or {})
    first = judge_sets(plain)
    doctor_env = by_doctor(diagnose(plain.facts.done(), platform=plain.platform), record)
    told = read_env(record.get("env") or {})
    add_culprit(told, {k: str(v) for k, v in (record.get("culprit") or {}).items()})
    second = judge_sets(told)
    filled = names_culprit(grave(second), wanted)
    doctor = by_doctor(diagnose(told.facts.done(), platform=told.platform), record)
    return Row(
        record=record,
        wanted=wanted,
        told=told.versions,
        env=names_culprit(grave(first), wanted),
        filled=filled,
        error=names_culprit(grave(second, worst=True), wanted) is not None,
        exact=any(_same_cause(f, record) for f in grave(second) if names_culprit([f], wanted)),
        doctor_env=doctor_env,
        doctor=doctor,
        reason="" if filled else _reason(record, wanted, told, second),
        findings=tuple(f for j in second for f in j.findings),
        sets=tuple(told.sets()),
    )


def _reason(record: Mapping[str, Any], wanted: frozenset[str], told: Told, judged: Sequence[Judgement]) -> str:
    """Why nothing caught it: the environment is too thin, only a note tells it, or there is no rule."""
    if not wanted:
        return "no matter of versions"
    if thin := _too_thin(record, wanted, told):
        return f"too thin: {thin}"
    there = {"torch" if n == "cuda" else n for n, found in told.versions.items() if found != ("*",)}
    if missing := sorted(wanted - there):
        return f"too thin: no version of {', '.join(missing)}"
    notes = [f for j in judged for f in j.findings if f.severity is Severity.NOTE]
    if rule := names_culprit(notes, wanted):
        return f"told as a note only: {rule}"
    return "no rule"


def _same_cause(finding: Finding, record: Mapping[str, Any]) -> bool:
    return bool(rule_taxonomy().get(finding.rule, {}).get("cause") == record["cause_key"])


def _too_thin(record: Mapping[str, Any], wanted: frozenset[str], told: Told) -> str | None:
    """The component whose release decides and that nobody told: with some release of it a rule of this very cause catches the record."""
    compiled = default_solver().compiled
    if not any(row.get("cause") == record["cause_key"] for row in rule_taxonomy().values()):
        return None
    for name in sorted({*wanted, component_of(str(record.get("framework", ""))) or "", "transformer-engine"}):
        if not name or told.versions.get(name, ("*",)) != ("*",) or name not in compiled.versions:
            continue
        for version in dict.fromkeys(v.split("+")[0] for v in compiled.versions[name]):
            given = {**told.sets()[0], name: version} if told.versions else {name: version}
            for finding in grave([check(given, told.platform)]):
                if _same_cause(finding, record) and names_culprit([finding], wanted):
                    return f"{finding.rule} decides by the release of {name}, which was not told"
    return None


# --- healthy cells -----------------------------------------------------------------------------------------------------------------------

# What a run of this kind never reaches, by its `kind`: inference trains nothing, a compile job does not even import.
NOT_REACHED = {
    "inference": {"train", "checkpoint"},
    "build": {"import", "init", "train", "checkpoint", "communication"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthyCell:
    """A set that a framework's own CI runs, its images ship or its lock holds. ``declared`` is false when its own metadata forbids it."""

    given: Mapping[str, str]
    kind: str
    judgement: Judgement

    @property
    def alarms(self) -> list[Finding]:
        """Errors of the stages that such a run reaches."""
        skipped = NOT_REACHED.get(self.kind, set())
        return [f for f in grave([self.judgement], worst=True) if f.stage not in skipped]

    @property
    def declared(self) -> bool:
        return not any("-declares-" in f.rule for f in self.judgement.findings)


def healthy(path: Path | None) -> list[HealthyCell]:
    """Of a file of such cells, or of ``matrix/tested``.

    Left out of a file: workflows that are switched off, other accelerators, images with a torch of the vendor's own, and torch releases that
    no line names. ``cuda`` is the CUDA of the torch build only where it is spelt ``cu121`` or as ``torch_cuda``; otherwise it is that of the image,
    which is a toolkit.
    """
    found: dict[tuple[tuple[tuple[str, str], ...], str], HealthyCell] = {}
    for fields in _tested_lines(path):
        framework = component_of(str(fields.get("framework", "")))
        torch = versions_in("torch", str(fields.get("torch", "")))
        role = default_solver().compiled.roles.get(framework or "")
        if framework is None or not torch or role is None or role.value != "framework" or _elsewhere(fields):
            continue
        given = {framework: str(fields["version"]), "torch": torch[0]}
        for name, text in _hosts(fields):
            if versions := versions_in(name, text):
                given.setdefault(name, versions[0])
        kind = str(fields.get("kind", ""))
        if re.search(r"nv-(inference|sd|mii|a6000)|inference", str(fields.get("evidence", ""))):
            kind = "inference"
        elif "ext_build" in kind or "pre-compile" in str(fields.get("evidence", "")):
            kind = "build"
        key = (tuple(given.items()), kind)
        if key not in found and all(_is_version(v) for v in given.values()):
            found[key] = HealthyCell(given=given, kind=kind, judgement=check(given))
    return list(found.values())


def _elsewhere(fields: Mapping[str, Any]) -> bool:
    told = " ".join(str(fields.get(k, "")) for k in ("cuda", "base_image", "runner", "torch"))
    return bool(re.search(r"rocm|xpu|intel|hpu|nvcr\.io|amd", told)) or fields.get("triggers") == ["none"]


def _hosts(fields: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    cuda, python = str(fields.get("cuda") or ""), str(fields.get("python") or "")
    for text in (str(fields.get("torch_cuda") or ""), cuda):
        if build := re.search(r"\bcu(\d{2})(\d)\b", text):
            yield "cuda", f"{build[1]}.{build[2]}"
    if fields.get("cuda_spec"):
        yield "cuda", str(fields["cuda_spec"])
    elif re.fullmatch(r"\d+\.\d+(\.\d+)?", cuda):
        yield "toolkit", cuda
    yield "toolkit", str(fields.get("cuda_toolkit") or "")
    if re.fullmatch(r"(==)?3\.\d+(\.\d+|\.\*)?", python):
        yield "python", python.removeprefix("==").removesuffix(".*")


def _tested_lines(path: Path | None) -> Iterable[Mapping[str, Any]]:
    if path is not None:
        import yaml

        yield from yaml.safe_load(path.read_text())["cells"]
        return
    for t in default_solver().knowledge().tested:
        torch = [v for v in default_solver().compiled.versions["torch"] if t.torch.contains(v.split("+")[0])]
        if torch:
            builds = [c for v in torch if (c := local_cuda(v)) and t.cuda is not None and t.cuda.contains(c)]
            yield {
                "framework": t.framework,
                "version": re.sub(r"^==", "", str(t.version)),
                "torch": torch[-1].split("+")[0],
                "cuda_spec": builds[-1] if builds else str(t.cuda or ""),
                "python": str(t.python or ""),
                "kind": t.kind,
            }


# --- peers -------------------------------------------------------------------------------------------------------------------------------


def requirements(given: Mapping[str, str]) -> list[str]:
    """The part of a set that a package resolver can be asked: distributions of the package index."""
    table = default_solver().knowledge().components.by_name
    found = []
    for name, version in given.items():
        component = table.get(name)
        if component and component.distributions and component.role.value != "host":
            plain = version.split("+")[0]
            if name not in {"nccl", "cudnn"}:
                found.append(f"{component.distributions[0]}=={plain}")
    return found


REFUSED = re.compile(
    r"No solution found|ResolutionImpossible|conflicting dependencies|No matching distribution|not compatible"
)


def ask_peer(tool: str, wanted: Sequence[str], python: str | None, limit: float = 60) -> str:
    """What ``uv`` or ``pip`` says of the requirements: accepted, refused, failed (another error), timeout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "in.txt"
        file.write_text("\n".join(wanted) + "\n")
        if tool == "uv":
            command = ["uv", "pip", "compile", "-q", "--no-header", str(file)]
            command += ["--python-version", python] if python else []
        else:
            command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "-r", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
        except OSError:
            return "absent"
    if done.returncode == 0:
        return "accepted"
    return "refused" if REFUSED.search(done.stderr) else "failed"


def ask_peers(rows: Sequence[Row], pip: int) -> dict[str, Counter[str]]:
    """Both peers on the sets of ``env+culprit`` that have a distribution; ``pip`` on the first ``pip`` of those with two or more."""
    said: dict[str, Counter[str]] = {"uv pip compile": Counter(), "pip install --dry-run": Counter()}
    for row in rows:
        given = {n: v for n, v in row.sets[0].items() if v != "*"} if row.sets else {}
        wanted = requirements(given)
        ours = "check finds it" if row.filled else "check does not"
        if not wanted:
            said["uv pip compile"][f"nothing to ask ({ours})"] += 1
            continue
        said["uv pip compile"][f"{ask_peer('uv', wanted, given.get('python'))} ({ours})"] += 1
        if len(wanted) > 1 and sum(said["pip install --dry-run"].values()) < pip:
            said["pip install --dry-run"][f"{ask_peer('pip', wanted, None)} ({ours})"] += 1
    return said


# --- telling -----------------------------------------------------------------------------------------------------------------------------


def rate(good: int, of: int) -> str:
    return f"{good}/{of} = {100 * good / max(1, of):.1f} %"


def summary(rows: Sequence[Row], negatives: Sequence[Row], cells: Sequence[HealthyCell]) -> dict[str, str]:
    versioned = [r for r in rows if r.wanted]
    stated = [r for r in versioned if not r.reason.startswith("too thin")]
    other = [r for r in rows if not r.wanted]
    allowed = [c for c in cells if c.declared]
    bad = [c for c in allowed if c.alarms]
    warned = [c for c in allowed if not c.alarms and grave([c.judgement])]
    alarms = [r for r in negatives if grave_of(r, worst=True)]
    mild = [r for r in negatives if not grave_of(r, worst=True) and grave_of(r)]
    return {
        "records that the environment can reveal (env or both, evaluable)": str(len(rows)),
        "  of these matters of versions": str(len(versioned)),
        "caught by check, matters of versions, env only": rate(sum(1 for r in versioned if r.env), len(versioned)),
        "caught by check, matters of versions, env+culprit": rate(
            sum(1 for r in versioned if r.filled), len(versioned)
        ),
        "  of those where the versions that decide were told": rate(sum(1 for r in stated if r.filled), len(stated)),
        "  with an error, not only a warning": rate(sum(1 for r in versioned if r.error), len(versioned)),
        "  by a rule that the doctor's taxonomy gives this very cause": rate(
            sum(1 for r in versioned if r.exact), len(versioned)
        ),
        "caught by doctor on structured facts, other matters, env only": rate(
            sum(1 for r in other if r.doctor_env), len(other)
        ),
        "caught by doctor on structured facts, other matters, env+culprit": rate(
            sum(1 for r in other if r.doctor), len(other)
        ),
        "caught by check or doctor, all records, env only": rate(
            sum(1 for r in rows if r.env or r.doctor_env), len(rows)
        ),
        "caught by check or doctor, all records, env+culprit": rate(
            sum(1 for r in rows if r.filled or r.doctor), len(rows)
        ),
        "false alarms on negatives (errors)": rate(len(alarms), len(negatives)),
        "  negatives with a warning only": rate(len(mild), len(negatives)),
        "false alarms on healthy cells (errors)": rate(len(bad), len(allowed)),
        "  healthy cells with a warning only": rate(len(warned), len(allowed)),
        "  cells left out, for the metadata of the release itself forbids their torch": str(len(cells) - len(allowed)),
    }


def grave_of(row: Row, *, worst: bool = False) -> list[Finding]:
    wanted = {Severity.ERROR} if worst else {Severity.ERROR, Severity.WARNING}
    return [f for f in row.findings if f.severity in wanted]


def per_cause(rows: Sequence[Row]) -> dict[str, Counter[str]]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        caught = row.filled or row.doctor
        table[row.record["cause_key"]].update(
            {"n": 1, "env": bool(row.env or row.doctor_env), "caught": bool(caught), "missed": not caught}
        )
    return dict(sorted(table.items()))


def tell(rows: Sequence[Row], negatives: Sequence[Row], cells: Sequence[HealthyCell], said: Mapping[str, Any]) -> None:
    for key, value in summary(rows, negatives, cells).items():
        print(f"{key}: {value}")
    print(f"\n{'cause':<42}  n  env-only  caught  missed")
    for cause, c in per_cause(rows).items():
        print(f"{cause:<42} {c['n']:>2} {c['env']:>8} {c['caught']:>7} {c['missed']:>7}")
    print("\nmissed (env+culprit):")
    for row in rows:
        if not (row.filled or row.doctor):
            print(f"  {row.record['id']} [{row.record['cause_key']}] {row.reason or 'doctor says nothing'}")
    print("\nfalse alarms:")
    for row in negatives:
        for f in grave_of(row):
            print(f"  {row.record['id']} {f.severity.value} {f.rule} {dict(f.components)}")
    for cell in cells:
        for f in cell.alarms if cell.declared else ():
            print(f"  {dict(cell.given)} {cell.kind} {f.rule}: {f.message[:160]}")
    print("\nwarnings on healthy cells, by rule:")
    warned = Counter(f.rule for c in cells for f in c.judgement.findings if f.severity is Severity.WARNING)
    for rule, n in warned.most_common():
        print(f"  {n:>4} {rule}")
    for peer, counts in said.items():
        print(
            f"\n{peer} on the same sets (refused: no versions fit; failed: another error, mostly a source that does not build):"
        )
        for verdict, n in sorted(counts.items()):
            print(f"  {n:>4} {verdict}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cells", type=Path, help="a YAML file of healthy cells; default: matrix/tested")
    parser.add_argument("--peers", action="store_true", help="ask uv and pip too (network)")
    parser.add_argument("--pip", type=int, default=12, help="how many sets pip is asked with --peers")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="every record with its set and findings")
    options = parser.parse_args(argv)
    records = [json.loads(line) for line in options.corpus.read_text().splitlines() if line.strip()]
    evaluable = [r for r in records if r.get("evaluable", True)]
    started = time.process_time()
    rows = [judge(r) for r in evaluable if r["detectable_from"] in {"env", "both"} and not r.get("negative")]
    negatives = [judge(r) for r in evaluable if r.get("negative")]
    cells = healthy(options.cells)
    seconds = time.process_time() - started
    said = ask_peers([r for r in rows if r.wanted], options.pip) if options.peers else {}
    if options.json:
        found = {"summary": summary(rows, negatives, cells), "causes": per_cause(rows), "peers": said}
        print(json.dumps(found, indent=1, default=dict))
        return 0
    tell(rows, negatives, cells, said)
    print(f"\n{len(rows)} records, {len(negatives)} negatives, {len(cells)} cells in {seconds:.1f} CPU seconds")
    for row in (*rows, *negatives) if options.show else ():
        print(f"\n{row.record['id']} [{row.record['cause_key']}] culprit {sorted(row.wanted)}")
        print(
            f"  sets {list(map(dict, row.sets))}\n  env={row.env} filled={row.filled} doctor={row.doctor} {row.reason}"
        )
        for f in row.findings:
            print(f"    {f.severity.value:<7} {f.rule} {dict(f.components)} {f.message[:110]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
