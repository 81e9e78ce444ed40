"""What a published release says itself of the stated versions: a ``raise`` behind a comparison with one of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from envsmith.knowledge.names.dotted import dotted
from envsmith.knowledge.names.function_runs import takes
from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import module_of
from envsmith.knowledge.names.reach import PackageUses
from envsmith.knowledge.names.scopes import FUNCTIONS, Chain, within
from envsmith.knowledge.names.settled_source import SettledSources, VersionRefusal
from envsmith.model.project_name import normal_name
from envsmith.project.code.judge_uses import by_distribution, component_name, has
from envsmith.project.published.stated import stated_python

# How much is told of what functions refuse of the same packages.
_MOST = 3
# Lines of a ``try`` that are looked at.
_LONG_TRY = 40
# A line that imports or calls a name.
_USE = rb"^\s*(?:from|import)\b[^\n#]*\b%s\b|^(?!\s*(?:async |class |def ))[^\n#]*\b%s\("
# Packages of which a release is there wherever functions of others run.
_PRESENT = frozenset({"torch", "torch_cuda", "cuda", "tokenizers", "safetensors"})
_AVAILABLE = re.compile(r"\bis_(\w+)_available")
# What code says that runs on no device of CUDA.
OTHER_DEVICE = re.compile(
    r"(?<![a-z])(?:amd|darwin|hip|hpu|mlu|mps|mtia|musa|npu|rocm|tpu|win32|xla|xpu)(?![a-z])", re.IGNORECASE
)
# Paths of code that no user runs, or none on a device of CUDA.
_ASIDE = re.compile(rf"/scripts/|{OTHER_DEVICE.pattern}", re.IGNORECASE)
_TEST = re.compile(r"_?[tT]est")


def settled_sources(
    root: str, texts: Mapping[str, bytes], itself: Mapping[str, str], versions: Mapping[str, str], names: NameIndex
) -> SettledSources:
    """Return the sources of the release ``itself``, by its name, as they run beside the stated versions."""
    own = by_distribution(itself)
    releases, by_module = (
        by_distribution(versions) | own,
        distributions_by_module() | dict.fromkeys([root], next(iter(own), root)),
    )

    def has_name(chain: Chain) -> bool:
        presence = names.ask(".".join(chain))
        return presence is not None and has(presence, releases.get(presence.distribution, "")) is True

    return SettledSources(
        texts,
        releases,
        stated_python(versions),
        lambda module: by_module.get(module, normal_name(module)),
        has_name,
        itself=frozenset(own),
    )


class SettledRelease:
    """The sources of the release ``itself`` as they run beside the stated versions, read when they are asked for."""

    def __init__(
        self, root: str, texts: Mapping[str, bytes], itself: Mapping[str, str], versions: Mapping[str, str]
    ) -> None:
        self.root, self.texts, self.versions = root, texts, versions
        self._itself = itself

    @cached_property
    def sources(self) -> SettledSources:
        """Return its sources."""
        return settled_sources(self.root, self.texts, self._itself, self.versions, NameIndex.installed())

    @cached_property
    def package(self) -> PackageUses[str]:
        """Return what its import runs."""
        files = {path: path for path in self.texts}
        return PackageUses([self.root], files, self.texts.__getitem__, parse=self.sources.parse)


def refusal_at_import(root: str, package: PackageUses[str], sources: SettledSources) -> VersionRefusal | None:
    """Return what stops the import of a package, if something does."""
    stops = ((stop.path, stop.line) for stop in package.stops(root) if not stop.available)
    return next((refusal for stop in stops if (refusal := sources.refusals.get(stop))), None)


def warning_at_import(root: str, package: PackageUses[str], sources: SettledSources) -> VersionRefusal | None:
    """Return what the import of a package warns of, if it does."""
    run = {*package.paths_at_import(root)}
    return next((warning for (path, _), warning in sources.warnings.items() if path in run), None)


def refusal_before_use(
    root: str, package: PackageUses[str], sources: SettledSources, texts: Mapping[str, bytes]
) -> VersionRefusal | None:
    """Return what a function refuses that a module hands on where it is imported, to be called before it is used."""
    refusing = {path for path, _ in sources.refusals}
    for path in dict.fromkeys(path for path in package.paths_at_import(root) if path in refusing):
        for name in _functions_handed_on(ast.parse(texts[path]).body):
            content = package.content(module_of(path), name)
            for stop in content.stops if content else ():
                refusal = sources.refusals.get((path, stop.line))
                if refusal and stop.function == name and not (stop.guard.tests or stop.guard.caught):
                    return refusal
    return None


def refusals_in_functions(
    texts: Mapping[str, bytes], sources: SettledSources, versions: Mapping[str, str]
) -> Iterator[tuple[str, VersionRefusal]]:
    """Yield what functions of the sources refuse where they are called, with the file and line: each once.

    As far as the sources were settled. What takes the failure is silent, what only runs beside other releases, and what
    concerns packages that are not stated, or another device. So is what is written for another Python: who calls it knows.
    """
    packages = {component_name(name) for name in versions} - {"python"}
    present = {*_PRESENT, *(name.replace("-", "_") for name in by_distribution(versions))}
    counts, conditions = Counter[frozenset[str]](), set[str]()
    callers = _Callers(texts, sources)
    for (path, line), refusal in sorted(sources.refusals.items(), key=lambda entry: entry[0]):
        if (
            path not in texts
            or _ASIDE.search(path)
            or refusal.condition in conditions
            or packages.isdisjoint(map(component_name, refusal.packages))
            or counts[refusal.packages] >= _MOST
        ):
            continue
        tree = callers.tree(path)
        names = _functions_around(tree, line)
        if not names or any(map(_TEST.match, names)) or not present.issuperset(_wanted(tree, line)):
            continue
        if callers.come_to(module_of(path), names):
            counts[refusal.packages] += 1
            conditions.add(refusal.condition)
            yield f"{path}:{line}", refusal


def _functions_around(tree: ast.Module, line: int) -> list[str]:
    """Return the names of the classes and functions around a line, ``[]`` where the module itself runs it."""
    scopes = [n for n in ast.walk(tree) if isinstance(n, (*FUNCTIONS, ast.ClassDef)) and _has(n, line)]
    return [scope.name for scope in scopes] if any(isinstance(scope, FUNCTIONS) for scope in scopes) else []


def _wanted(tree: ast.Module, line: int) -> Iterator[str]:
    """Yield what the conditions around a line want to be there: packages, and devices but for CUDA's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(_has(part, line) for part in node.body):
            test = ast.unparse(node.test)
            yield from OTHER_DEVICE.findall(test)
            yield from _AVAILABLE.findall(test)


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


@dataclass(frozen=True, slots=True)
class _Callers:
    """What of a package calls its functions."""

    texts: Mapping[str, bytes]
    sources: SettledSources
    _trees: dict[str, ast.Module] = field(default_factory=dict)
    _named: dict[str, bool] = field(default_factory=dict)

    def come_to(self, module: str, names: Sequence[str]) -> bool:
        """Return whether a function may be called beside the stated releases, and its failure is not taken.

        ``names`` are those of what is around a line. What nothing of the package names, a user calls.
        """
        own = [name for name in names if not name.startswith("__")]
        return all(map(self._is_named, (*own, module.rpartition(".")[2]))) and not self._is_taken(own)

    def _is_named(self, name: str) -> bool:
        """Return whether a source names it as it runs, or none does at all."""
        if name not in self._named:
            saying = {path: text for path, text in self.texts.items() if name.encode() in text}
            use = re.compile(_USE % (name.encode(), name.encode()), re.MULTILINE)
            self._named[name] = (
                any(use.search(text) and not self.sources.asks(text) for text in saying.values())
                or any(
                    self._says(path, name) and name in _named(self.sources.parse(path, saying[path])) for path in saying
                )
                or not any(self._says(path, name) for path in saying)
            )
        return self._named[name]

    def _says(self, path: str, name: str) -> bool:
        return name in _named(self.tree(path))

    def _is_taken(self, names: Sequence[str]) -> bool:
        """Return whether a source calls the last of names where a handler takes what it raises."""
        call = re.compile(rb"(?:\btry:|\bsuppress\()(?:[^\n]*\n){1,%d}?[^\n]*\b%s\(" % (_LONG_TRY, names[-1].encode()))
        return any(_takes_failure(self.tree(path), names) for path, text in self.texts.items() if call.search(text))

    def tree(self, path: str) -> ast.Module:
        """Return a source as it is written, empty where this Python cannot read it."""
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self.texts[path])
            except (SyntaxError, ValueError, RecursionError):
                self._trees[path] = ast.Module(body=[], type_ignores=[])
        return self._trees[path]


def _named(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses, or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").rpartition(".")[2]
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")


def _takes_failure(tree: ast.Module, names: Sequence[str]) -> bool:
    bodies = (node.body for node in ast.walk(tree) if _is_taking(node) and isinstance(node, (ast.Try, ast.With)))
    return any(_calls(node, names) for body in bodies for node in within(body) if isinstance(node, ast.Call))


def _calls(node: ast.Call, names: Sequence[str]) -> bool:
    """Return whether a call may be one of the last of names. What a class of another name has is something else."""
    *_, owner, name = ("", *dotted(node.func).split("."))
    return name == names[-1] and (not owner[:1].isupper() or owner in names)


def _is_taking(node: ast.AST) -> bool:
    if isinstance(node, ast.With):
        return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.Try) and takes(node)


def _functions_handed_on(body: list[ast.stmt]) -> Iterator[str]:
    run = [node for node in body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    calls = [node for node in within(run) if isinstance(node, ast.Call)]
    handed = {
        a.id for call in calls for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Name)
    }
    return (node.name for node in body if isinstance(node, FUNCTIONS) and node.name in handed)
