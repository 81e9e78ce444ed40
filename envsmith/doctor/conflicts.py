"""Which requirements exclude each other: what pip, uv, Poetry and conda say of the sets that they cannot resolve."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsmith.doctor.needed_releases import release_that_takes
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.read.resolutions import (
    NOT_INSTALLED,
    Statement,
    met,
    read_complaints,
    read_statements,
    refused_roots,
)
from envsmith.doctor.signatures import Hit

_REACH = 4000
# An item of conda with its build, `zlib==1.2.13=h5eee18b_0`, and packages that PyTorch's channel no longer has.
_BUILD = re.compile(r"=[\d.][\w.]*=\w*_?\w*h[0-9a-f]{7}_\d+$|=py[\d.]+_cuda")
# libmamba: `nothing provides requested zlib ==1.2.13 h5eee18b_0`, `├─ quarto ~= does not exist (perhaps a typo or …)`.
_NOT_PROVIDED = re.compile(
    r"(?:nothing provides requested |[─-] )([a-z][\w.-]{1,60})(?: ([=<>~]{1,2}[\d.][\w.*]{0,30}))?(?: ([\w.]{1,60}))?"
    r"(?=\s*$| ~?=? ?\*?\s?does not exist \(perhaps a typo)",
    re.MULTILINE,
)
# pixi: `├─ pytorch-gpu 2.10.0 would require` and below it `└─ arm-variant * sbsa, for which no candidates were found`.
_NO_CANDIDATES = re.compile(
    r"[─-] ([a-z][\w.-]{1,60})[^\n]{0,80}? would require\s[^\w\n]*([a-z][\w.-]{1,60})[^,\n]{0,60}, for which no candidates"
)
_ENDED = re.compile(r"pytorch[=>]=?2\.(?:[6-9]|\d\d)|torchvision[=>]=?0\.2[1-9]|torchaudio[=>]=?2\.(?:[6-9]|\d\d)")
_CONDA = re.compile(
    r"UnsatisfiableError|libmamba|\b(?:conda|mamba|micromamba)\b|[├└]─ | conflicts for:|found to be in conflict",
    re.IGNORECASE,
)
_IGNORED = re.compile(
    r"Ignored the following versions that require a different python version: (?P<releases>[^\n]{1,20000})"
)
# What reads as a conflict only where two requirements of one package are there.
_SPOKEN = "requirements-spoken"


@dataclass(frozen=True, slots=True)
class _Conflict:
    """What excludes each other, as a sentence, what to do, and what alone ends it, as requirements.

    ``taker`` is a release and what another one of its project has to go with, where the index may know that one.
    """

    sentence: str
    way: str
    needs: tuple[str, ...] = ()
    pythons: str = ""
    taker: str = ""


def with_conflict(hit: Hit, text: str) -> Hit | None:
    """Return what a resolver says with the one conflict behind it, and what mends it. ``None`` where nothing is one."""
    around = text[max(0, hit.position - 1200) : hit.position + _REACH]
    signature = hit.signature.id
    if signature == "conda-package-unknown":
        return _with_absent(hit, text[max(0, hit.position - 800) : hit.position + _REACH])
    if signature == "pip-no-version":
        return _with_ignored(hit, around)
    if signature == "pip-incompatible":
        return _with_complaints(hit, around)
    if signature not in {"pip-resolution", "pip-requires-python", "conda-excluded", _SPOKEN}:
        return hit
    statements = read_statements(around)
    conflict = _of_pythons(statements, around) or (
        None if signature == "pip-requires-python" else _of_pair(statements, around)
    )
    if conflict is None and signature not in {"pip-requires-python", _SPOKEN}:
        conflict = _of_conda(statements, around)
    if conflict is None:
        return None if signature == _SPOKEN else hit
    needs = "; ".join(conflict.needs)
    return hit.naming(
        told=conflict.sentence, way=conflict.way, needs=needs, pythons=conflict.pythons, taker=conflict.taker
    )


def _of_pythons(statements: Sequence[Statement], text: str) -> _Conflict | None:
    """Return which Pythons a project promises that a package does not have: uv and Poetry resolve for all of them."""
    promised = next((each for each in statements if each.need == "Python" and each.kind == "asked"), None)
    needed = next((each for each in statements if each.need == "Python" and each.kind == "required"), None)
    if promised is None or needed is None:
        return None
    pythons = met([promised.spec, needed.spec]) if "|" not in promised.spec else needed.spec
    key = "requires-python" if "requested Python version" in text else "python"
    sentence = f"the project is for Python {promised.spec}, and {needed}"
    return _Conflict(sentence, f'{key} = "{pythons or needed.spec}" in pyproject.toml', pythons=pythons or needed.spec)


def _of_pair(statements: Sequence[Statement], text: str) -> _Conflict | None:
    conda = bool(_CONDA.search(text))
    pairs = list(_excluding(statements, has_builds=conda))
    if not pairs:
        return None
    wish, asks = min(pairs, key=_rank)
    release = _release_for(asks, wish) if asks.asker else None
    if wish.asker and not release and (turned := _release_for(wish, asks)):
        wish, asks, release = asks, wish, turned
    of_need = [pair for pair in pairs if pair[0].need == asks.need]
    # What alone ends it: the version that a requirement leaves where no other one excludes that, and another release of
    # who asks where nobody else excludes the wish.
    is_disputed = any(first.asker and second.asker for first, second in of_need)
    is_alone = all(asks.asker in {first.asker, second.asker} for first, second in of_need)
    limits = _limits(statements, asks) if asks.asker and not is_disputed and wish.kind != "offered" else ""
    needs = [f"{asks.need}{limits}"] if limits else []
    needs += [f"{asks.asker}=={release}"] if release and is_alone else []
    sentence, way = f"{wish}, and {asks}", _way_out(wish, asks, release)
    if conda:
        return _Conflict(_in_words_of_conda(sentence), _in_words_of_conda(way), tuple(needs))
    is_asked = not release and is_alone and asks.asker and asks.release and wish.spec and wish.kind != "offered"
    taker = f"{asks.asker} {asks.release} {asks.need} {wish.spec}" if is_asked else ""
    return _Conflict(sentence, way, tuple(needs), taker=taker)


def _in_words_of_conda(text: str) -> str:
    return re.sub(r"==([\w.]+?)\.\*", r"=\1", text)


def _excluding(statements: Sequence[Statement], *, has_builds: bool) -> Iterator[tuple[Statement, Statement]]:
    """Give the pairs that exclude each other: of the releases of one asker none may go with what the other says.

    A release of conda is one of several builds (``has_builds``), of which one can be chosen. Elsewhere it requires all
    that is said of it.
    """
    groups: dict[tuple[str, str, str], list[Statement]] = {}
    for each in statements:
        key = (fold(each.need), fold(each.asker), "" if each.asker else f"{each.kind}{each.spec}")
        groups.setdefault(key, []).append(each)
    for (key, group), (rival_key, rivals) in itertools.combinations(groups.items(), 2):
        if key[0] != rival_key[0] or (key[1] == rival_key[1] and key[1]):
            continue
        sides = (_choices(group, has_builds=has_builds), _choices(rivals, has_builds=has_builds))
        pairs = [_first_excluding(*choices) for choices in itertools.product(*sides)]
        if pairs[0] and all(pairs):
            first, second = pairs[0]
            yield (second, first) if first.asker and not second.asker else (first, second)


def _first_excluding(group: Sequence[Statement], rivals: Sequence[Statement]) -> tuple[Statement, Statement] | None:
    return next((pair for pair in itertools.product(group, rivals) if pair[0].excludes(pair[1])), None)


def _choices(group: Sequence[Statement], *, has_builds: bool) -> list[list[Statement]]:
    """Return what is said of each release, or of each of its builds."""
    by_release: dict[object, list[Statement]] = {}
    for number, each in enumerate(group):
        by_release.setdefault(number if has_builds else each.release, []).append(each)
    return list(by_release.values())


def _rank(pair: tuple[Statement, Statement]) -> int:
    """Return what sorts pairs: what the user asks for against a requirement first, then two requirements."""
    kinds = {each.kind for each in pair}
    return 0 if "required" in kinds and len(kinds) > 1 else 1 if kinds == {"required"} else 2


def _limits(statements: Sequence[Statement], asks: Statement) -> str:
    """Return the versions that a requirement leaves, with those of the alternatives that go with it."""
    specs = [each.spec for each in statements if each.need == asks.need and each.kind in {"required", "offered"}]
    fitting = [spec for spec in dict.fromkeys(specs) if met([asks.spec, spec])]
    return met([asks.spec, *(spec for spec in fitting if "|" not in spec)]) if "|" not in asks.spec else ""


def _release_for(asks: Statement, wish: Statement) -> str | None:
    """Return the release of who asks of which it is known that it takes what the other statement asks."""
    asker, need = component_of(asks.asker), component_of(asks.need)
    with contextlib.suppress(ValueError):
        release = release_that_takes(asker, asks.release, need, wish.spec) if asker and need and wish.spec else None
        return release if release != asks.release else None
    return None


def _way_out(wish: Statement, asks: Statement, release: str | None) -> str:
    wish_text, limits = (f"{each.need}{each.spec}" for each in (wish, asks))
    if wish.kind == "offered" or asks.kind == "offered":
        offer, asks = (wish, asks) if wish.kind == "offered" else (asks, wish)
        loosen = f"Loosen {asks.need}{asks.spec}{f', which {asks.asker} asks for' if asks.asker else ''}"
        return f"{loosen}: {offer.need}{offer.spec} is all that the index has; or name an index that has it"
    if not asks.asker:
        return f"Both stand in the requirements: keep one of {wish_text} and {limits}"
    if release:
        alternative = (
            f", or {limits} with what belongs to it" if asks.spec.startswith("==") else f", or ask for {limits}"
        )
        return f"{component_of(asks.asker)} {release} takes {wish_text}{alternative}"
    if wish.asker:
        return (
            f"Take a release of {wish.asker} that goes with {limits}, or one of {asks.asker} that goes with {wish_text}"
        )
    return f"Ask for {limits}, or take a release of {asks.asker} that goes with {wish_text}"


def _of_conda(statements: Sequence[Statement], text: str) -> _Conflict | None:
    """Return what conda names as incompatible without saying which two exclude each other."""
    if not _CONDA.search(text):
        return None
    fresh = "a fresh environment has no old pins: conda create -n NAME with these packages"
    if pins := re.findall(r"^ ?- (\S[^\n]{1,60}?) \(labeled as 'pin-", text, re.MULTILINE):
        sentence = f"the environment is pinned to {pins[0].removesuffix('.*')}"
        return _Conflict(
            sentence, f"Take that pin away (conda-meta/pinned, conda config --show pinned_packages), or {fresh}"
        )
    if roots := refused_roots(text):
        against = [str(each) for each in statements if each.asker and each.spec and each.need in roots]
        sentence = "; ".join([f"what else is asked for excludes {' and '.join(roots[:4])}", *against[:2]])
        return _Conflict(
            _in_words_of_conda(sentence),
            f"Take another release of one of them, or of what they share (Python, CUDA), or let all channels be looked at (--channel-priority flexible); {fresh}",
        )
    named = [
        each
        for each in statements
        if each.need and (each.asker or each.kind == "asked") and (each.spec or not each.asker)
    ]
    names = list(dict.fromkeys(each.asker or each.need for each in named))
    if len(names) == 1 and not any(each.asker for each in named):
        return _Conflict(
            f"{names[0]} does not go with what is installed in this environment", fresh[0].upper() + fresh[1:]
        )
    if not names:
        return None
    sentence = _in_words_of_conda(
        "; ".join(dict.fromkeys(map(str, sorted(named, key=lambda each: names.index(each.asker or each.need)))))
    )
    return _Conflict(
        sentence[:400],
        f"Take another release of {' or of '.join(names[:4])}, or all from one channel (--override-channels -c conda-forge); {fresh}",
    )


def _with_complaints(hit: Hit, around: str) -> Hit:
    """Return pip's message with all that it says of packages that are installed: first what weighs most."""
    statements = read_complaints(around)
    present = {each.need: each for each in statements if each.kind == "installed"}
    complaints = [
        _Complaint(have, [d for d in statements if d.asker and d.need == need]) for need, have in present.items()
    ]
    if not complaints:
        return hit
    main = min(complaints, key=lambda each: each.weight)
    every = [main, *(each for each in complaints if each is not main and each.is_there)][:5]
    sentence = "; ".join(map(str, every))
    alternatives = (
        _listed(main.takers) + f" for {main.have.need} {main.have.version}"
        if main.takers
        else f"another release of {main.askers}"
    )
    installed = " ".join(f"'{each.have.need}{each.limits}'" for each in every if each.limits or not each.is_there)
    if main.limits or not main.is_there:
        way = f"pip install {installed}, or {alternatives}"
    else:
        way = f"No {main.have.need} is right for all of them: take {alternatives}"
    first = main.statements[0]
    groups = {"who": first.asker, "who_version": first.release, "told": sentence, "way": way}
    groups |= {"need": first.need, "spec": main.limits} if main.limits or not main.is_there else {}
    return dataclasses.replace(hit, groups={name: value for name, value in groups.items() if value})


@dataclass(frozen=True, slots=True)
class _Complaint:
    """What is installed of a package, and the requirements that it does not fulfil."""

    have: Statement
    statements: Sequence[Statement]

    def __str__(self) -> str:
        ending = f"and {self.have}" if self.is_there else "which is not installed"
        return f"{_listed(list(map(str, self.statements[:4])))}, {ending}"

    @property
    def is_there(self) -> bool:
        return self.have.spec != NOT_INSTALLED

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Return what sorts complaints: those of torch first, then of what most packages complain of."""
        return not self.is_there, self.have.need != "torch", -len(self.statements)

    @property
    def limits(self) -> str:
        return met([each.spec for each in self.statements])

    @property
    def askers(self) -> str:
        return " or of ".join(dict.fromkeys(each.asker for each in self.statements))

    @property
    def takers(self) -> list[str]:
        """Return releases of those who complain that are known to go with what is installed."""
        releases = ((each.asker, _release_for(each, self.have)) for each in self.statements)
        return list(dict.fromkeys(f"{component_of(asker)} {release}" for asker, release in releases if release))


def _listed(sentences: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(sentences[:-1]), sentences[-1]]))


def _with_ignored(hit: Hit, around: str) -> Hit:
    """Return a release that pip does not find with the Pythons that it asks for, where pip left it out for that."""
    ignored, pin = _IGNORED.search(around), hit.groups.get("pin", "")
    spec = ignored and re.search(rf"(?:^|[ ;]){re.escape(pin)} Requires-Python ([^;\n]+)", ignored["releases"])
    return hit.naming(pythons=spec[1].strip()) if pin and spec else hit


def _with_absent(hit: Hit, around: str) -> Hit:
    """Return conda's message with what its channels lack: builds of another platform, PyTorch's packages after 2.5."""
    around = re.sub(r"^> ?", "", around, flags=re.MULTILINE)
    listed = r"^\s*- ([a-z][\w.-]*[=<>]\S{1,80}|[a-z][\w.-]{1,60})$"
    items = re.findall(listed, around[at:], re.MULTILINE) if (at := around.find("NotFound")) >= 0 else []
    items += [f"{need} (which {asker} requires)" for asker, need in _NO_CANDIDATES.findall(around)]
    items += ["=".join(filter(None, parts)).replace("===", "==") for parts in _NOT_PROVIDED.findall(around)]
    platform = re.search(r"Platform: ((?:win|osx|linux)-\w{2,8})", around)
    return hit.naming(
        absent=", ".join(dict.fromkeys(items[:6])),
        build=next(filter(_BUILD.search, items), None),
        ended=next(filter(_ENDED.match, items), None),
        platform=platform[1] if platform else None,
    )
