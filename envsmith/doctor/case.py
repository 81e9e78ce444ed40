"""What the judges of a diagnosis look at: facts and messages, made of texts once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from envsmith.doctor.explained_lacks import explain_lacks, explain_unsaid
from envsmith.doctor.facts import Draft, Facts
from envsmith.doctor.lacks import Lack, is_lack, lack_of
from envsmith.doctor.mended_line import MendedLine
from envsmith.doctor.messages import read_messages
from envsmith.doctor.needed_releases import releases_for_finding
from envsmith.doctor.rank_failures import blame_texts
from envsmith.doctor.read.lines import component_of, version_in
from envsmith.doctor.signatures import Hit, Signature
from envsmith.doctor.stated_environment import check_versions
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.stored import Occasion
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.model.rule import PassedRun, Severity

if TYPE_CHECKING:
    from envsmith.doctor.name_explanation import MissingNameExplanation

# A symbol of C++ may be that of a class of warnings.
_SYMBOL = re.compile(r"\b_Z\w{2,400}")
# Named groups of signatures that are the version of a component.
_VERSION_GROUPS = {n.replace("-", "_"): n for n in ("toolkit", "cuda", "nccl", "gcc", "python", "flash-attn")}


class PublishedPackages(Protocol):
    """What can be read of packages where they are published."""

    def names(self, lacks: Sequence[Lack], facts: Facts, names: NameIndex) -> NameIndex:
        """Return the names with those of the packages that some lacks are about."""

    def traced(self, facts: Facts, texts: Sequence[tuple[str, str]]) -> Facts:
        """Return the facts with the releases that printed the tracebacks of texts."""

    def mended(self, facts: Facts, texts: Sequence[tuple[str, str]]) -> MendedLine | None:
        """Return the line at which a package itself failed, where a newer release has it no longer."""

    def taking(self, hit: Hit) -> Hit:
        """Return a conflict of two requirements with the release of who asks that goes with the other one."""


@dataclass(frozen=True, slots=True)
class DiagnosisInput:
    """What the judges look at: the hits of messages, and of rules over versions by rule id, and names that are missing.

    ``explained`` holds each with the messages of the same failure class on its line, a cause first.
    """

    facts: Facts
    own: Sequence[Hit]
    of_rules: Mapping[str, Hit]
    judgement: Judgement
    explained: Sequence[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]] = ()
    blamed: tuple[str, Blame] | None = None
    platform: Platform = Platform.LINUX_64
    symbols: SymbolTable | None = field(default_factory=lambda: SymbolTable.installed(find_matrix() / "symbols"))

    @property
    def measured_lines(self) -> set[tuple[str, int]]:
        """Return the lines of which the name index says which releases they concern."""
        return {lack.hit.place for lack, explanation, _ in self.explained if explanation.is_certain}

    def is_contradicted(self, signature: Signature) -> bool:
        """Return whether the release of every component of a rule is stated: the rule then spoke, or does not hold."""
        stated = [self.facts.components.get(name) for name in signature.components]
        return bool(stated) and all(s is not None and s.exact for s in stated)

    def is_outdone(self, own: Hit) -> bool:
        """Return whether a message says less than another of its line: one that names the cause, or that of a rule.

        The rule is one that no version confirms or contradicts.
        """
        if own.signature.tells == "need":
            here = (h.signature for h in self.own if h.place == own.place)
            return any(signature.kind == "cause" and signature.tells != "need" for signature in here)
        judged = {finding.rule for finding in self.judgement.findings}
        rules = (h for h in self.of_rules.values() if h.place == own.place and h.signature.id not in judged)
        is_general = own.signature.kind == "symptom"
        return is_general and any(_is_cause_of_rule(h) and not self.is_contradicted(h.signature) for h in rules)

    @property
    def symptoms(self) -> list[Hit]:
        """Return the messages that do not name their cause."""
        lacks = [lack.hit for lack, _, _ in self.explained]
        return [hit for hit in (*self.own, *lacks) if hit.signature.kind in {"symptom", "consequence"}]


def read_case(
    facts: Facts,
    texts: Sequence[tuple[str, str]],
    *,
    platform: Platform | None,
    names: NameIndex | None,
    keep: Collection[str],
    runs: Sequence[PassedRun],
    launches: Mapping[str, Sequence[Occasion]] | None = None,
    published: Callable[[], PublishedPackages] | None = None,
) -> DiagnosisInput:
    """Read the messages of ``texts``, and judge the versions that they and ``facts`` state.

    ``published`` gives the names of packages that ``names`` do not have, and the releases that printed a traceback.
    """
    hits = [hit for source, text in texts for hit in read_messages(text, source)]
    if published:
        hits = [published().taking(hit) if "taker" in hit.groups else hit for hit in hits]
    lacks = [lack_of(hit, text) for source, text in texts for hit in hits if is_lack(hit) and hit.source == source]
    facts = _with_groups(facts, hits)
    if published and (lacks or not any(_explains(hit) for hit in hits)):
        facts = published().traced(facts, texts)
    platform = platform or _platform(facts)
    judgement = check_versions(facts, platform, keep, runs)
    needs = [
        f.needs or releases_for_finding(f, facts, platform) for f in judgement.findings if f.severity is Severity.ERROR
    ]
    names = names or NameIndex.installed()
    explained = explain_lacks(lacks, hits, facts, names, needs)
    if published and (unmeasured := _unmeasured(lacks, hits, explained)):
        read = published().names(unmeasured, facts, names)
        explained = [each for each in explained if each[0] not in unmeasured]
        explained += explain_lacks(unmeasured, hits, facts, read, needs)
    if not (explained or any(hit.signature.severity is not Severity.NOTE for hit in hits)):
        explained = explain_unsaid(texts, facts, names, needs)
    superseded = {h.signature.id for _, explanation, twins in explained if explanation.is_certain for h in twins}
    messages = [hit for hit in hits if not is_lack(hit) and hit.signature.id not in superseded]
    return DiagnosisInput(
        facts=facts,
        own=[hit for hit in messages if not hit.signature.rule],
        of_rules={hit.signature.id: hit for hit in messages if hit.signature.rule and _speaks(hit, messages)},
        judgement=judgement,
        explained=explained,
        blamed=blame_texts(texts, launches),
        platform=platform,
    )


def _explains(hit: Hit) -> bool:
    """Return whether a message says why the program failed, so that no release need be known."""
    signature = hit.signature
    is_failure = signature.severity is Severity.ERROR or "Error: " in hit.text
    return signature.kind in {"cause", "other"} and is_failure and not is_lack(hit)


def _unmeasured(
    lacks: Iterable[Lack],
    hits: Sequence[Hit],
    explained: Sequence[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]],
) -> list[Lack]:
    """Return the lacks of which nothing certain is known, neither by names nor by a message that names its cause."""
    places = {lack.hit.place for lack, explanation, _ in explained if explanation.is_certain}
    places |= {hit.place for hit in hits if hit.signature.kind == "cause"}
    return [lack for lack in lacks if lack.hit.place not in places and not (lack.is_told and lack.owner)]


def _platform(facts: Facts) -> Platform:
    return Platform.LINUX_AARCH64 if "aarch64" in facts.host.get("machine", "") else Platform.LINUX_64


def _with_groups(facts: Facts, hits: Iterable[Hit]) -> Facts:
    """Return the facts with what messages say: versions (``Installed CUDA version 12.2 …``), and that no GPU is seen."""
    draft = Draft()
    draft.components = dict(facts.components)
    for hit in hits:
        place = f"{hit.source}:{hit.line}"
        if "gpu" in hit.groups:
            draft.component("gpu", f"sm_{hit.groups['gpu']}", place, 1)
        if "cuda_major" in hit.groups:
            draft.component("cuda", f"{hit.groups['cuda_major']}.{hit.groups['cuda_minor']}", place, 3)
        pairs = [(_VERSION_GROUPS.get(group), value) for group, value in hit.groups.items()]
        pairs += [
            (component_of(hit.groups[side]), hit.groups.get(f"{side}_version", ""))
            for side in ("who", "have")
            if side in hit.groups
        ]
        for component, value in pairs:
            if component and (version := version_in(value)):
                draft.component(component, version[0], place, 3)
    unseen = {"gpu_visible": "no"} if any(map(_sees_no_gpu, hits)) else {}
    return dataclasses.replace(facts, components=draft.components, host={**facts.host, **unseen})


def _sees_no_gpu(hit: Hit) -> bool:
    """Return whether a message says that a program sees no driver. CUDA's runtime calls a driver that is not there old."""
    return hit.signature.cause == "driver-missing" or "driver version is insufficient" in hit.text


def _is_cause_of_rule(hit: Hit) -> bool:
    return hit.signature.rule and hit.signature.kind == "cause"


def _speaks(hit: Hit, messages: Sequence[Hit]) -> bool:
    """Return whether a rule's message shows something: warnings do not, but torch warns of a driver that fails.

    A symptom that many causes have shows nothing where another message on its line names the cause.
    """
    if hit.signature.kind == "symptom":
        here = (m.signature for m in messages if m.place == hit.place)
        return not any(signature.kind == "cause" and not signature.rule for signature in here)
    return "driver" in hit.signature.components or not is_warning(hit.text)


def is_warning(line: str) -> bool:
    """Return whether the program itself calls it a warning: an optional part is missing, and the run goes on."""
    lower = _SYMBOL.sub("", line).lower().replace("nccl warn", "")
    return "warn" in lower or "[nemo w " in lower or "falling back to" in lower
