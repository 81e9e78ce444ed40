"""An environment as ``check`` takes it, versions and other facts, and one judgement of both kinds of rules.

A fact is ``KEY=VALUE`` with the keys of ``matrix/doctor/words.yaml``, one at a time or all in a JSON file. ``none``
says that the thing is known to be absent. What is read goes into the :class:`~envsmith.doctor.facts.Draft` that readers
fill too.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from envsmith import solver
from envsmith.base.json_types import JsonFields
from envsmith.base.schema import parse_object
from envsmith.doctor.diagnosis import Diagnosed
from envsmith.doctor.facts import Draft, Facts, StatedVersion
from envsmith.doctor.read.lines import bytes_of, component_of, note_present, read_lines
from envsmith.doctor.rules import features_of, judge_launches, judge_setup, judge_stated
from envsmith.doctor.vocabulary import words
from envsmith.errors import EnvsmithError, UsageError
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.model.rule import PassedRun, Severity
from envsmith.model.version import ABSENT, local_cuda, minor_of

_GRAVITY = tuple(Severity)
# Tools of the installation: what they declare says nothing about what runs later.
_NO_RULES = frozenset({"pip", "wheel"})
# A component that is known to be absent, as the fact that rules look for.
_TOOLS = {"toolkit": "nvcc", "gcc": "c++", "ninja": "ninja", "pybind11": "pybind11"}
_WORDS: Mapping[str, frozenset[str]] = {
    "ssh": frozenset({"ok", "refused"}),
    "hostname": frozenset({"ok", "unresolved", "loopback"}),
    "infiniband": frozenset({"used", "present", "none"}),
    "extensions_cache": frozenset({"ok", "stale"}),
    "cuda_home.lib64": frozenset({"yes", "no"}),
    "toolkit_vendor": frozenset({"nvidia", "conda", "nvhpc"}),
}
_SHAPES = {"glibcxx": re.compile(r"3\.4(?:\.\d{1,2})?"), "launcher": re.compile(r"[A-Za-z][\w.+-]{0,60}")}
_NUMBERS = frozenset({"gpu_count", "ranks", "nodes"})
_LIMITS = frozenset({"memlock", "shm", "nofile"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,60}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")
_MAX = 1_000_000
# The start command of which single options are stated: no launcher of that name exists, so no rule of one looks at it.
_COMMAND = "stated"


def facts_of(versions: Mapping[str, str], draft: Draft) -> Facts:
    """Return the facts of ``draft`` with the versions of a given set, where ``*`` is in use and ``none`` is absent."""
    for name, version in versions.items():
        if component_of(name) is None:
            continue
        if version in ABSENT:
            draft.components.pop(name, None)
            if name in _TOOLS:
                draft.tools[_TOOLS[name]] = None
            else:
                draft.host[name] = "none"
        elif version == "*":
            note_present(draft, name)
        else:
            first = version.split(",", maxsplit=1)[0]
            draft.component(name, first, "given", 4)
            if name == "torch" and (cuda := local_cuda(first)):
                draft.component("cuda", cuda, "given", 4)
    return draft.done()


def findings_of(facts: Facts) -> list[Diagnosed]:
    """Return what the rules over facts find, the gravest first, each finding once."""
    diagnosed_all = [*judge_setup(facts), *judge_launches(facts), *judge_stated(facts)]
    unique = {(d.finding.rule, d.finding.message): d for d in diagnosed_all}
    return sorted(unique.values(), key=lambda d: _GRAVITY.index(d.finding.severity))


def _stated_beside(facts: Facts) -> dict[str, str]:
    """Return the components of which a fact says the version or the absence: a list of GPUs, an OS, ``tool.nvcc``."""
    exact = {n: v for n, v in versions_of(facts).items() if facts.components[n].exact}
    tools = {name for name, tool in _TOOLS.items() if facts.tools.get(tool, "") is None}
    absent = tools | {name for name, value in facts.host.items() if value == "none" and component_of(name) == name}
    return {**dict.fromkeys(sorted(absent), "none"), **exact}


@one_state()
def check_environment(
    versions: Mapping[str, str], draft: Draft | None, platform: Platform | None = None, *, keep: Collection[str] = ()
) -> Judgement:
    """Judge a set of versions together with the facts beside it.

    Findings of both kinds are in one list. The repair is that of the versions, for no release mends a limit or a
    variable. It leaves ``keep`` alone where it can. Raises ``UsageError`` when a version is not one.
    """
    facts = facts_of(versions, copy.deepcopy(draft) or Draft())
    versions = {**_stated_beside(facts), **versions}
    judgement = Judgement(status="ok")
    if versions or not facts.count:
        judgement = solver.check(versions, platform, keep=keep, features=features_of(facts))
    if (cuda := judgement.inferred.get("cuda")) and "cuda" not in facts.components:
        inferred = StatedVersion(version=cuda, source="inferred", strength=1)
        facts = dataclasses.replace(facts, components={**facts.components, "cuda": inferred})
    of_versions = {(finding.rule, finding.severity) for finding in judgement.findings}
    of_facts = [dataclasses.replace(d.finding, where=d.where) for d in findings_of(facts)]
    findings = (*judgement.findings, *(f for f in of_facts if (f.rule, f.severity) not in of_versions))
    return dataclasses.replace(judgement, findings=findings).settled()


def check_versions(facts: Facts, platform: Platform, keep: Collection[str], runs: Sequence[PassedRun]) -> Judgement:
    """Judge the versions of facts, without those that the solver cannot read."""

    def judged(versions: Mapping[str, str]) -> Judgement:
        if not versions:
            return Judgement(status="unknown")
        return solver.check(versions, platform, keep=keep, features=features_of(facts), runs=runs)

    versions = versions_of(facts)
    try:
        return judged(versions)
    except EnvsmithError:
        readable = {}
    for name, version in versions.items():
        with contextlib.suppress(EnvsmithError):
            solver.check({name: version}, platform)
            readable[name] = version
    try:
        return judged(readable)
    except EnvsmithError as error:
        return Judgement(status="unknown", unknown=(error.message,))


def versions_of(facts: Facts) -> dict[str, str]:
    """Return what ``check`` is asked: components with a version, ``gpu`` for several architectures joined by commas."""
    versions = {n: s.version for n, s in facts.components.items() if component_of(n) and n not in _NO_RULES}
    cuda = versions.get("cuda")
    if cuda and cuda != "cpu" and cuda.count(".") > 1:
        versions["cuda"] = minor_of(cuda)
    if cuda and local_cuda(versions.get("torch", "")) == cuda:
        del versions["cuda"]
    return versions


def read_fact(draft: Draft, key: str, value: str, where: str = "--fact") -> None:
    """Add one fact. ``UsageError`` names the key, what it takes, and what was given instead."""
    kind, dot, name = key.partition(".")
    value = value.strip()
    if not value or len(value) > 400:
        raise UsageError(f"Cannot read {where} {key[:60]}: it has no value.", hint=f"Write {key[:60]}=VALUE.")
    if key in _WORDS:
        if value not in _WORDS[key]:
            raise UsageError(f"Cannot read {where} {key}: {value!r} is none of {', '.join(sorted(_WORDS[key]))}.")
        draft.host[key] = value
    elif key in _NUMBERS:
        _number(draft, key, value, where)
    elif key == "gpus":
        read_lines(f"gpu: {value}", draft, where)
    elif key == "os":
        read_lines(f"os: {value}", draft, where)
    elif key in _SHAPES and _SHAPES[key].fullmatch(value):
        draft.host[key] = value
    elif dot and _NAME.fullmatch(name):
        _named(draft, kind, name, value, where)
    else:
        raise UsageError(f"Cannot read {where} {key[:60]}={value[:60]}: no fact has this form.", hint=_hint(key))


def _hint(key: str) -> str:
    kind = key.partition(".")[0]
    own = {k: what for k, what in words().facts.items() if k.partition(".")[0] == kind}
    forms = "; ".join(f"{k}: {what}" for k, what in own.items())
    return f"Write one of these: {forms}." if forms else f"Use one of these keys: {', '.join(words().facts)}."


def _number(draft: Draft, key: str, value: str, where: str) -> None:
    if not re.fullmatch(r"[1-9]\d{0,5}", value):
        raise UsageError(f"Cannot read {where} {key}: {value[:40]!r} is not a number above zero.")
    if key == "gpu_count":
        draft.gpu_count = int(value)
    draft.host[key] = value


def _named(draft: Draft, kind: str, name: str, value: str, where: str) -> None:
    absent = value.lower() in ABSENT
    if kind == "tool":
        draft.tools[name] = None if absent else value
    elif kind in {"library", "module"}:
        if kind == "library" and not name.startswith("lib"):
            name = f"lib{name}"
        draft.host[f"{kind}.{name}"] = "none" if absent else value
    elif kind == "limit" and name in _LIMITS and (size := _limit(name, value)) is not None:
        draft.limits[name] = size
    elif kind in {"built_for", "checkout"} and (component := component_of(name)):
        draft.host[f"{kind}.{component}"] = value
    elif kind in {"config", "option"}:
        tool = words().configuration.tool if kind == "config" else _COMMAND
        options = {name: value}
        for earlier in [each for each in draft.launches if each.tool == tool and not each.source]:
            options = {**earlier.options, **options}  # what is stated one by one is one configuration or command
            draft.launches.remove(earlier)
        draft.launch(tool, options, f"{where} {kind}")
    else:
        raise UsageError(f"Cannot read {where} {kind}.{name}={value[:60]}: no fact has this form.", hint=_hint(kind))


def _limit(name: str, value: str) -> int | None:
    if name == "nofile" and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    return bytes_of(value) if re.match(r"\d|unlimited", value) else None


def read_variable(draft: Draft, text: str, where: str = "--env") -> None:
    """Add a variable: ``NAME=VALUE`` is set, ``NAME`` alone is known to be unset. Raises ``UsageError``."""
    name, is_set, value = text.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise UsageError(
            f"Cannot read {where} {text[:60]!r}: it is not NAME=VALUE.",
            hint="Write NAME=VALUE for a variable that is set, NAME alone for one that is unset.",
        )
    if is_set:
        draft.variable(name, value)
    else:
        note_unset(draft, name)


def note_unset(draft: Draft, name: str) -> None:
    """Record that a variable is known to have no value (``host["unset"]``)."""
    unset = [n for n in draft.host.get("unset", "").split(",") if n]
    draft.host["unset"] = ",".join(dict.fromkeys([*unset, name]))


def read_environment(text: str, draft: Draft, where: str) -> dict[str, str] | None:
    """Return the components of a JSON object of components, variables and facts, and add its other facts.

    ``None`` when the text is not such an object. ``UsageError`` with the key path when a value is not understood.
    """
    if not text.lstrip().startswith("{") or len(text) > _MAX:
        return None
    data = parse_object(text)
    if not data or set(data) - {"components", "variables", "facts"}:
        return None
    components: dict[str, str] = {}
    for name, value in _object(data, "components", where).items():
        if not isinstance(value, str):
            raise UsageError(f"Cannot read components.{name[:60]} of {where}: it is not a version.")
        components[component_of(name) or name[:60]] = "none" if value in ABSENT else value
        if value == "*":
            note_present(draft, name)
    for name, value in _object(data, "variables", where).items():
        if value is not None and not isinstance(value, str):
            raise UsageError(
                f"Cannot read variables.{name[:60]} of {where}: it is neither a text nor null (a variable that is "
                "unset)."
            )
        read_variable(draft, name if value is None else f"{name}={value}", f"{where}: variables.")
    for name, value in _object(data, "facts", where).items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int))):
            raise UsageError(f"Cannot read facts.{name[:60]} of {where}: it is neither a text, a number nor null.")
        read_fact(draft, name, "none" if value is None else str(value), f"{where}: facts.")
    return components


def _object(data: JsonFields, key: str, where: str) -> JsonFields:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"Cannot read {key} of {where}: it is not an object.")
    return value
