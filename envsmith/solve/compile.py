"""Knowledge -> numbers: every spec as a mask over the releases of its component, every row as nogoods over specs.

The compiled form is what a solver needs and nothing else; it is kept as JSON in the cache, so that a solve reads neither YAML nor
evidence. Texts, evidence and dates stay in the :class:`Knowledge`, which is loaded when something has to be explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.model.component import Role
from envsmith.model.platform import Platform
from envsmith.model.rule import Knowledge, Row, RuleKind, Severity
from envsmith.model.version import Spec, version_key

__all__ = ["Compiled", "CompiledRow", "CompiledRule", "compile_knowledge", "sort_versions"]


@dataclass(frozen=True, slots=True)
class CompiledRow:
    """``nogoods`` are tuples of spec numbers: all these specs together are bad; ``~n`` stands for *not* in spec ``n``."""

    number: int
    severity: Severity
    platforms: tuple[str, ...]
    nogoods: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule by id; ``bundles`` for what a wheel carries."""

    id: str
    bundles: bool
    components: tuple[str, ...]
    rows: tuple[CompiledRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Versions by component (oldest first) and the masks over them.

    ``pre`` and ``yanked`` mark releases that are not taken by default; ``dates`` are ISO days or ``""``; ``torch_index`` tells per
    platform where a build is found; ``tested`` holds ``(framework, mask of releases, mask of torch releases, is a record)``.
    """

    digest: str
    roles: Mapping[str, Role]
    versions: Mapping[str, tuple[str, ...]]
    dates: Mapping[str, tuple[str, ...]]
    pre: Mapping[str, int]
    yanked: Mapping[str, int]
    torch_index: Mapping[str, Mapping[str, str]]
    specs: tuple[tuple[str, str, int], ...]
    rules: tuple[CompiledRule, ...]
    tested: tuple[tuple[str, int, int, bool], ...]
    gpus: Mapping[str, str]
    distributions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON; masks are hexadecimal texts."""
        return {
            "digest": self.digest,
            "roles": {n: r.value for n, r in self.roles.items()},
            "versions": {n: list(v) for n, v in self.versions.items()},
            "dates": {n: list(v) for n, v in self.dates.items()},
            "pre": {n: f"{m:x}" for n, m in self.pre.items()},
            "yanked": {n: f"{m:x}" for n, m in self.yanked.items()},
            "torch_index": {p: dict(t) for p, t in self.torch_index.items()},
            "specs": [[c, t, f"{m:x}"] for c, t, m in self.specs],
            "rules": [
                [r.id, r.bundles, r.components, [[w.number, w.severity.value, w.platforms, w.nogoods] for w in r.rows]]
                for r in self.rules
            ],
            "tested": [[f, f"{v:x}", f"{t:x}", rec] for f, v, t, rec in self.tested],
            "gpus": dict(self.gpus),
            "distributions": dict(self.distributions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Compiled:
        """The inverse; ``ValueError``, ``TypeError`` or ``KeyError`` when it is not what :meth:`to_json` wrote."""
        severities = {s.value: s for s in Severity}
        return cls(
            digest=data["digest"],
            roles={n: Role(r) for n, r in data["roles"].items()},
            versions={n: tuple(v) for n, v in data["versions"].items()},
            dates={n: tuple(v) for n, v in data["dates"].items()},
            pre={n: int(m, 16) for n, m in data["pre"].items()},
            yanked={n: int(m, 16) for n, m in data["yanked"].items()},
            torch_index=data["torch_index"],
            specs=tuple((c, t, int(m, 16)) for c, t, m in data["specs"]),
            rules=tuple(
                CompiledRule(
                    i,
                    b,
                    tuple(c),
                    tuple(CompiledRow(n, severities[s], tuple(p), tuple(map(tuple, g))) for n, s, p, g in rows),
                )
                for i, b, c, rows in data["rules"]
            ),
            tested=tuple((f, int(v, 16), int(t, 16), bool(rec)) for f, v, t, rec in data["tested"]),
            gpus=data["gpus"],
            distributions=data["distributions"],
        )


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Oldest first; the words (``cpu``, ``none``) before all versions."""
    words: list[str] = []
    numbers: list[str] = []
    for version in dict.fromkeys(versions):
        (words if version_key(version) is None else numbers).append(version)
    return [*sorted(words), *sorted(numbers, key=lambda v: (version_key(v), v))]


class _Specs:
    """Numbers the specs and evaluates each once."""

    def __init__(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        self.versions = versions
        self.numbers: dict[tuple[str, str], int] = {}
        self.found: list[tuple[str, str, int]] = []

    def mask(self, component: str, spec: Spec) -> int:
        return sum(1 << i for i, v in enumerate(self.versions.get(component, ())) if spec.contains(v))

    def number(self, component: str, spec: Spec) -> int:
        key = (component, spec.text)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.found)
            self.found.append((component, spec.text, self.mask(component, spec)))
        return number


def compile_knowledge(knowledge: Knowledge) -> Compiled:
    """Evaluate every spec against every release; no platform is chosen yet."""
    versions = {name: tuple(vs) for name, vs in _versions(knowledge).items()}
    specs = _Specs(versions)
    rules = tuple(
        CompiledRule(
            rule.id,
            rule.kind is RuleKind.BUNDLES,
            rule.components,
            tuple(
                CompiledRow(i, row.severity, tuple(p.value for p in row.platforms), _nogoods(row, specs))
                for i, row in enumerate(rule.rows)
                if row.severity is not Severity.NOTE
            ),
        )
        for rule in knowledge.rules
    )
    tested = []
    for line in knowledge.tested:
        masks = specs.mask(line.framework, line.version), specs.mask("torch", line.torch)
        if all(masks):
            tested.append((line.framework, *masks, line.kind == "record"))
    dates, yanked = _marks(knowledge, versions)
    return Compiled(
        digest=knowledge.digest,
        roles={c.name: c.role for c in knowledge.components.by_name.values()},
        versions=versions,
        dates=dates,
        pre={n: _pre(vs) for n, vs in versions.items()},
        yanked=yanked,
        torch_index={
            p.value: {
                r.version: r.index or "default" for r in knowledge.releases.get("torch", ()) if _on(r.platforms, p)
            }
            for p in Platform
        },
        specs=tuple(specs.found),
        rules=rules,
        tested=tuple(tested),
        gpus=knowledge.gpus,
        distributions={d: c.name for c in knowledge.components.by_name.values() for d in c.distributions},
    )


def _on(platforms: tuple[Platform, ...], platform: Platform) -> bool:
    return not platforms or platform in platforms


def _versions(knowledge: Knowledge) -> dict[str, list[str]]:
    """Listed releases, plus what the wheels of torch carry, plus the architectures that GPU names stand for."""
    found: dict[str, set[str]] = {n: {r.version for r in rs} for n, rs in knowledge.releases.items()}
    bundles = (row for rule in knowledge.rules if rule.kind is RuleKind.BUNDLES for row in rule.rows)
    for name, spec in (need for row in bundles for need in row.needs.items()):
        exact = spec.text.removeprefix("==")
        if not set(exact) & set("*<>=!~,| "):
            found.setdefault(name, set()).add(exact)
    if knowledge.gpus:
        found.setdefault("gpu", set()).update(knowledge.gpus.values())
    return {name: sort_versions(vs) for name, vs in found.items()}


def _pre(versions: tuple[str, ...]) -> int:
    keys = [version_key(v) for v in versions]
    return sum(1 << i for i, k in enumerate(keys) if k is not None and k.is_prerelease)


def _marks(
    knowledge: Knowledge, versions: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    dates, yanked = {}, {}
    for name, known in versions.items():
        releases = {r.version: r for r in knowledge.releases.get(name, ())}
        dates[name] = tuple((releases[v].date or "") if v in releases else "" for v in known)
        yanked[name] = sum(1 << i for i, v in enumerate(known) if v in releases and releases[v].yanked)
    return dates, yanked


def _nogoods(row: Row, specs: _Specs) -> tuple[tuple[int, ...], ...]:
    """``when`` all hold and one of ``needs`` does not; without ``needs``, ``when`` itself. ``*`` bars only a component that is known to be absent."""
    when = tuple(specs.number(name, spec) for name, spec in row.when.items())
    if not row.needs:
        return (when,)
    return tuple((*when, ~specs.number(name, spec)) for name, spec in row.needs.items())
