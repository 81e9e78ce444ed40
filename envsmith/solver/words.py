"""Releases, specs and rows as people write them. Pure text, shared by refusals, findings and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.version import Version

from envsmith.model.cell import Platform
from envsmith.model.component import CARRIED
from envsmith.model.finding import Finding
from envsmith.model.rule import WHEELS_ONLY, WHEELS_OR_SOURCE, Evidence, Row, Rule, RuleKind, Severity
from envsmith.model.version import WORDS, Spec, public, version_key

_SHOWN = 3
_Sentence = Callable[[Rule, Sequence[Row], Mapping[str, Sequence[str]]], str]


def join_words(words: Sequence[str], *, last: str = "and") -> str:
    """Return ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def name_release(component: str, version: str) -> str:
    """Return ``torch 2.9.1+cu128``. A GPU by its architecture alone, a build without CUDA as such."""
    if version == "none":
        return f"no {'GPU' if component == 'gpu' else component}"
    if component == "gpu":
        return f"GPU {version}"
    if component == "cuda":
        return "a build without CUDA" if version == "cpu" else f"CUDA {version}"
    return f"{component} {version}"


def these_versions(component: str, versions: Iterable[str | None]) -> str:
    """Return a set of releases (oldest first) in few words: ``2.4.0 and 2.4.1``, ``0.9.0 to 0.14.0``.

    Builds of torch count by release.
    """
    listed = [v for v in versions if v is not None]
    if component == "torch" and len(listed) > 1:
        listed = list(dict.fromkeys(public(v) for v in listed))
    return join_words(listed) if len(listed) <= _SHOWN else f"{listed[0]} to {listed[-1]}"


def shown_spec(component: str, spec: Spec) -> str:
    """Return ``torch >=2.2.0,<=2.5.1``. An exact spec as the release it names."""
    exact = spec.exact
    if exact:
        return name_release(component, exact)
    title = component.upper() if component in {"cuda", "gpu"} else component
    left_out = [part.removeprefix("!=") for part in spec.text.split(",")]
    if len(left_out) > _SHOWN and spec.text.count("!=") == len(left_out):
        return f"{title} other than {', '.join(left_out[: _SHOWN - 1])} and {len(left_out) - _SHOWN + 1} more"
    text = " or ".join(part.removeprefix("==") for part in spec.text.split(" || "))
    return title if spec.is_any else f"{title} {text}"


# How many pieces of evidence a conflict or finding keeps.
MOST_EVIDENCE = 4


def strongest(evidence: Iterable[Evidence], *, limit: int = MOST_EVIDENCE) -> tuple[Evidence, ...]:
    """Return each source once (whatever artifact it was read from), the strongest kind first."""
    once: dict[tuple[str, str], Evidence] = {}
    for entry in evidence:
        once.setdefault((entry.kind.value, entry.source), entry)
    return tuple(sorted(once.values(), key=lambda e: -e.kind.strength)[:limit])


def rule_sentence(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]], *, cause: bool = True) -> str:
    """Return what ``rows`` of a rule say, in one sentence.

    ``affected`` are the releases of each component that are concerned.
    """
    if not rows:
        return _gap_sentence(rule, affected)
    if rule.id in _BUNDLES:
        return _bundle_sentence(rule, rows, affected)
    special = _SPECIAL.get(rule.id)
    if special:
        return special(rule, rows, affected)
    first = rows[0]
    if rule.policies and (len(rows) > 1 or len(first.when) == 1):
        # Which releases, Pythons and builds those are is what `envsmith wheel` lists.
        return _unready_sentence(first, cause=cause)
    same = [row for row in rows if first.needs or row.cause == first.cause]
    parts = [
        _needs_words(rule, row) if row.needs else join_words([shown_spec(c, s) for c, s in row.when.items()])
        for row in same[:_SHOWN]
    ]
    sentence = "; ".join(dict.fromkeys(parts))
    sentence += f"; and {len(same) - len(parts)} more like these" if len(same) > len(parts) else ""
    if not first.needs:
        because = (first.cause or first.symptom or "known to be bad").rstrip(".")
        together = len(first.when) > 1 and first.severity is Severity.ERROR
        elsewhere = f" (and {len(rows) - len(same)} more for another reason)" if len(rows) > len(same) else ""
        return (
            f"{sentence} do not work together: {because}{elsewhere}"
            if together
            else f"{sentence}: {because}{elsewhere}"
        )
    why = first.cause if cause and not rule.is_declared else None
    return sentence + (f" ({why.rstrip('.')})" if why else "")


def _unready_sentence(row: Row, *, cause: bool) -> str:
    needs = join_words([shown_spec(c, s) for c, s in row.needs.items()])
    why = (row.cause or "").rstrip(".")
    subject = f"{next(iter(row.when))} without a ready wheel"
    if not needs:
        return f"{subject}: {why}"
    return f"{subject} needs {needs}" + (f" ({why})" if cause else "")


def _needs_words(rule: Rule, row: Row) -> str:
    verb = "declares" if rule.is_declared else "carries" if rule.kind is RuleKind.BUNDLES else "needs"
    if rule.is_extra:
        verb = "asks in an extra for"
    if row.cause in {WHEELS_ONLY, WHEELS_OR_SOURCE}:
        verb = "has wheels only for"
    who = join_words([shown_spec(c, s) for c, s in row.when.items()], last="with")
    return f"{who} {verb} " + join_words([shown_spec(c, s) for c, s in row.needs.items()])


def _gap_sentence(rule: Rule, affected: Mapping[str, Sequence[str]]) -> str:
    builds = affected.get("torch", ())
    torch = f"torch {these_versions('torch', builds)}" if builds else "that build of torch"
    if rule.id == "torch-runs-on-gpu" and builds and all(v.endswith("+cpu") for v in builds):
        return "a build of torch without CUDA runs on no GPU"
    if rule.id == "torch-runs-on-gpu":
        where = _where(affected)  # a release may have no build for it
        none, unknown = f"no build of {torch}{where} is known to run on a GPU", "it is not known for which GPUs"
        return none if where else f"{unknown} {torch} is compiled"
    return f"it is not known which {rule.components[-1]} {torch} carries"


def _python_sentence(_rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    minors = sorted(
        {
            part.strip().removeprefix("==").removesuffix(".*")
            for row in rows
            for part in row.needs["python"].text.split("||")
        },
        key=lambda v: [int(p) if p.isdigit() else 0 for p in v.split(".")],
    )
    span = minors[0] if len(minors) == 1 else f"{minors[0]} to {minors[-1]}"
    builds = these_versions("torch", _builds(rows, affected))
    return f"torch {builds} {_verb(rows, affected, 'has', 'have')} wheels for Python {span} only"


def _gpu_sentence(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    compiled = list(dict.fromkeys(row.cause for row in rows if row.cause))
    what = compiled[0] if len(compiled) == 1 else "compiled for " + " ".join(_archs(rows))
    gpus = join_words(list(affected.get("gpu", ())))
    runs = f", which does not run on {gpus}" if gpus else ""
    verb = _verb(rows, affected, "is", "are")
    return f"{_torch_among(rule, rows, _builds(rows, affected))}{_where(affected)} {verb} {what}{runs}"


def _torch_among(rule: Rule, rows: Sequence[Row], builds: Sequence[str]) -> str:
    """Return builds of torch in few words, with their CUDA where the same releases have builds that are not concerned."""
    here = [row.when["torch"].exact or "" for row in rule.rows if row.platforms == rows[0].platforms]
    ends = [i for i, build in enumerate(here) if build in builds]
    further = (
        {build.partition("+")[2] for build in here[ends[0] : ends[-1] + 1] if build not in builds} if ends else set()
    )
    tags = {build.partition("+")[2] for build in builds}
    named = f"torch {these_versions('torch', builds)}"
    if len(builds) == 1 or not further:
        return named
    cudas = sorted((f"{tag[2:-1]}.{tag[-1]}" for tag in tags), key=Version)
    return f"some builds of {named}" if further & tags else f"{named} with {_span('cuda', cudas, last='or')}"


def _archs(rows: Sequence[Row]) -> list[str]:
    words = {w for row in rows for w in (row.cause or "").split() if w.startswith("sm_")}
    return sorted(words, key=lambda w: int(w[3:].rstrip("af") or 0))


def _bundle_sentence(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    """Return ``torch 2.15.0 carries nccl 2.30.7``.

    Of many builds that carry another release than ``affected``, which ones do carry it.
    """
    component = rule.id.removeprefix("torch-bundles-")
    one, many = ("is made with", "are made with") if component == "cuda" else ("carries", "carry")
    wished = [v for v in affected.get(component, ()) if v != "none"]
    if len(rows) > 2 * _SHOWN and wished:
        here = [row for row in rule.rows if row.platforms == rows[0].platforms]
        having = [row for row in here if row.needs[component].exact in wished]
        if wished == ["cpu"] and having:
            return "every other build of torch is made with CUDA"
        if not having:
            return f"no known build of torch{_where(affected)} {one} {_span(component, wished, last='or')}"
        what = _span(component, _carried(component, having), last="or")
        verb = _verb(having, {}, one, many)
        return f"only torch {these_versions('torch', _builds(having, {}))}{_where(affected)} {verb} {what}"
    verb = _verb(rows, affected, one.replace("made", "built"), many.replace("made", "built"))
    carried = _span(component, _carried(component, rows))
    sentence = f"torch {these_versions('torch', _builds(rows, affected))} {verb} {carried}"
    return sentence.replace("built with a build without", "built without")


def _carried(component: str, rows: Iterable[Row]) -> list[str]:
    """Return the releases that these rows name, oldest first. Words (``cpu``) count where there is nothing else."""
    carried = {row.needs[component].exact or row.needs[component].text for row in rows}
    return sorted(carried - set(WORDS), key=lambda v: version_key(v) or Version("0")) or sorted(carried)


def _span(component: str, versions: Sequence[str], *, last: str = "and") -> str:
    names = [name_release(component, v) for v in versions]
    return join_words(names, last=last) if len(names) <= _SHOWN else f"{names[0]} to {versions[-1]}"


def _where(affected: Mapping[str, Sequence[str]]) -> str:
    """Return the platform, where it is not the usual one."""
    return "".join(
        f" for {platform}" for platform in affected.get("platform", ()) if platform != Platform.LINUX_64.value
    )


def _platform_sentence(_rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    builds = _builds(rows, affected)
    which = "" if len(builds) == 1 or any(v.endswith("+cpu") for v in builds) else " with CUDA"
    verb = _verb(rows, affected, "is", "are")
    return f"torch {these_versions('torch', builds)}{which} {verb} {rows[0].cause}"


def _glibc_sentence(_rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    floors = list(dict.fromkeys(row.needs["glibc"].text for row in rows))
    return f"the wheels of torch {these_versions('torch', _builds(rows, affected))} need glibc {floors[0]}"


def _verb(rows: Sequence[Row], affected: Mapping[str, Sequence[str]], one: str, many: str) -> str:
    """Return the form of a verb for the torch releases that a sentence names."""
    return one if len({public(v) for v in _builds(rows, affected)}) == 1 else many


def _builds(rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> list[str]:
    named = [row.when["torch"].exact for row in rows]
    return [v for v in named if v] or list(affected.get("torch", ()))


_SPECIAL: dict[str, _Sentence] = {
    "torch-wheels-python": _python_sentence,
    "torch-runs-on-gpu": _gpu_sentence,
    "torch-wheels-platform": _platform_sentence,
    "torch-needs-glibc": _glibc_sentence,
}
_BUNDLES = frozenset(f"torch-bundles-{name}" for name in CARRIED)


def message_of(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    """Return what the rule says, and what is there instead."""
    sentence = rule_sentence(rule, rows, affected, cause=False)
    needed = [c for row in rows[:1] for c in row.needs if c in affected]
    present = [name_release(c, affected[c][0]) for c in needed]
    if present and rule.id != "torch-runs-on-gpu":
        sentence += f"; {join_words(present)} is there"
    cause = rows[0].cause
    if cause and rows[0].needs and not rule.is_declared and not rule.id.startswith("torch-"):
        sentence += f". {cause.rstrip('.')}"
    return sentence


def finding_of_row(
    rule: Rule,
    row: Row,
    severity: Severity,
    versions: Mapping[str, str],
    message: str,
    *,
    inferred: Mapping[str, str] | None = None,
) -> Finding:
    """Return the finding of one row of a rule. ``versions`` maps its components to releases."""
    return Finding(
        rule=rule.id,
        severity=severity,
        components=versions,
        message=message,
        evidence=row.evidence,
        fix=row.fix,
        symptom=row.symptom,
        stage=rule.stage,
        inferred=inferred or {},
    )
