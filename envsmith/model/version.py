"""Versions and specs: parsed once, compared ever after.

A version is kept as the text people know it by (``535.54.03``, ``2.9.1+cu128``, ``sm_90``) beside a PEP 440 key. A spec
is PEP 440 with four additions: ``||`` (union), bare versions (that release and its patch releases), ``*`` (any), and
``sm_NN`` for GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

# Words that stand where a version stands: a build without CUDA, a library that is not shipped. They match only
# themselves.
WORDS = frozenset({"cpu", "none"})
# How people say that something is absent. It is kept as ``none``.
ABSENT = frozenset({"none", "absent", "missing"})
_SM = re.compile(r"sm_?(\d{1,2})(\d)([af]?)(?![\w])", re.IGNORECASE)
_TEXT = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,63}")
_EXACT = re.compile(r"(={0,3})\s*([^*<>=!~,|\s]+)")
_MAX_SPEC = 400


def _pep440(text: str) -> str:
    """Return ``sm_90`` as ``9.0``, ``sm_103`` as ``10.3``: compute capabilities compare as numbers."""
    return _SM.sub(lambda m: f"{m[1]}.{m[2]}", text)


@lru_cache(maxsize=8192)
def version_key(text: str) -> Pep440 | None:
    """Return the PEP 440 key of a version text.

    ``None`` for the words of :data:`WORDS`. Raises ``ValueError`` for anything else.
    """
    if text in WORDS:
        return None
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is not a version")
    try:
        return Pep440(_pep440(text))
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a version") from error


def is_same_version(one: str | None, other: str | None) -> bool:
    """Return whether both are equal versions: metadata may say ``2024.01`` where the file name says ``2024.1``."""
    if one is None or other is None:
        return one == other
    try:
        return Pep440(one) == Pep440(other)
    except InvalidVersion:
        return one == other


def minor_of(version: str) -> str:
    """Return the first two numbers: ``3.12`` of ``3.12.4``."""
    return ".".join(version.split(".")[:2])


def public(version: str | None) -> str:
    """Return a version without its build tag: ``2.9.1`` of ``2.9.1+cu128``."""
    return str(version).partition("+")[0]


def local_cuda(version: str) -> str | None:
    """Return what torch's local version says of CUDA: ``12.1`` of ``2.1.0+cu121``, ``cpu`` of ``+cpu``."""
    local = version.partition("+")[2]
    if local.startswith("cpu"):
        return "cpu"
    match = re.match(r"cu(\d{2})(\d)(?!\d)", local)
    return f"{match[1]}.{match[2]}" if match else None


def parse_version(text: str) -> str:
    """Return the version text, trimmed and without a leading ``v``. ``ValueError`` when it is not a version."""
    clean = text.strip()
    if re.match(r"[vV]\d", clean):
        clean = clean[1:]
    clean = "none" if clean.lower() in ABSENT else clean
    version_key(clean)
    return clean


def parse_release(component: str, text: str) -> str:
    """Return a release of a component, where a torch without CUDA is spelt ``cpu``. ``ValueError`` for other texts."""
    version = parse_version(text)
    return "cpu" if (component, version) == ("cuda", "none") else version


def _part(text: str) -> SpecifierSet:
    """Parse one conjunction (``>=2.1,<2.4``), where a bare version widens to its patch releases."""
    clauses = []
    for raw in text.split(","):
        clause = _pep440(raw.strip())
        if not clause:
            continue
        if clause[0].isdigit() or clause[0] in "vV":
            version = Pep440(clause)
            widen = (
                len(version.release) <= 2
                and version.local is None
                and version.pre is None
                and not version.is_devrelease
            )
            clause = f"=={version}.*" if widen and version.post is None else f"=={version}"
        clauses.append(clause)
    return SpecifierSet(",".join(clauses))


@dataclass(frozen=True, slots=True)
class Spec:
    """A set of versions. ``str(spec)`` parses back to an equal spec. ``Spec.parse("*")`` is any."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a spec. ``ValueError`` says what is malformed."""
        return _parsed(text)

    @classmethod
    def _of(cls, text: str) -> Spec:
        parts = [re.sub(r"\s+", "", part) for part in text.split("||")] if text.strip() else ["*"]
        clean = " || ".join("none" if part.removeprefix("==") in ABSENT else part for part in parts)
        if len(clean) > _MAX_SPEC:
            raise ValueError(f"spec of {len(clean)} characters is longer than {_MAX_SPEC}")
        spec = cls(clean)
        try:
            _sets(clean)
        except (InvalidSpecifier, InvalidVersion, IndexError) as error:
            raise ValueError(f"{text!r} is not a version spec (examples: 2.4, ==2.4.*, '>=0.16,<0.17')") from error
        return spec

    @classmethod
    def exactly(cls, version: str) -> Spec:
        """Return the spec that only ``version`` satisfies (a local part, ``+cu128``, included when it is given)."""
        return cls.parse(version if version in WORDS else f"=={version}")

    @property
    def exact(self) -> str | None:
        """Return the one version that it names (``==2.9.1``, ``535.54.03``), or ``None`` for a range."""
        match = _EXACT.fullmatch(self.text)
        if not match:
            return None
        text, bare = match[2], not match[1]
        if (key := version_key(text)) is None:
            return text
        is_range = bare and len(key.release) <= 2 and not (key.local or key.pre or key.post or key.is_devrelease)
        return None if is_range else text

    @property
    def is_any(self) -> bool:
        """Return whether every version satisfies it."""
        return self.text == "*"

    @property
    def parts(self) -> tuple[frozenset[str], tuple[SpecifierSet, ...]]:
        """Return the words that satisfy it, and sets of clauses of which one is enough."""
        return _sets(self.text)

    @property
    def meaning(self) -> object:
        """Return a value that is equal for two spellings of one spec (``3.11``, ``==3.11.*``)."""
        words, sets = self.parts
        return words, frozenset(sets)

    @property
    def clauses(self) -> tuple[Spec, ...]:
        """Return each clause as a spec of its own."""
        return tuple(Spec.parse(part) for part in self.text.replace("||", ",").split(",") if part.strip())

    def contains(self, version: str) -> bool:
        """Return whether ``version`` satisfies this spec. Pre-releases count like any other version."""
        return _contains(self.text, version)

    def meet(self, spec: Spec) -> Spec:
        """Return the spec of what satisfies both. Unions are distributed."""
        if self.is_any or spec.is_any:
            return spec if self.is_any else self
        return Spec.parse(
            " || ".join(f"{a.strip()},{b.strip()}" for a in self.text.split("||") for b in spec.text.split("||"))
        )

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Spec:
    return Spec._of(text)  # noqa: SLF001 - kept outside of the class, whose subclasses there are none of


@lru_cache(maxsize=8192)
def _sets(text: str) -> tuple[frozenset[str], tuple[SpecifierSet, ...]]:
    words = set()
    sets = []
    for part in text.split(" || "):
        bare = part.removeprefix("==")
        if bare in WORDS:
            words.add(bare)
        elif part == "*":
            sets.append(SpecifierSet(""))
        elif not part:
            raise InvalidSpecifier(text)
        else:
            sets.append(_part(part))
    return frozenset(words), tuple(sets)


@lru_cache(maxsize=262144)
def _contains(text: str, version: str) -> bool:
    if text == "*":
        return True
    words, sets = _sets(text)
    key = version_key(version)
    if key is None:
        return version in words
    return any(s.contains(key, prereleases=True) for s in sets)
