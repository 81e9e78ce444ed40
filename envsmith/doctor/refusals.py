"""Who refuses which settings: the sentence of an exception, the package that raises it, and what it advises.

Packages say themselves what is wrong with their settings. The signatures of ``matrix/signatures/settings.yaml`` know
the forms of such sentences; here is told which of them are about settings, and not about data or a script of one's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from envsmith.doctor.fitting_numbers import numbers_that_fit
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.read.tracebacks import LoggedFrame, frames_before
from envsmith.doctor.signatures import Hit
from envsmith.doctor.vocabulary import words
from envsmith.frameworks import added_frameworks
from envsmith.model.rule import Severity

_PREFIX = "settings-"
# How a sentence writes a setting: an option, a name in quotes, a name with underscores, a variable.
_NAMED = re.compile(
    r"(--[a-z][\w-]+)|[`'\"]((?:--)?[A-Za-z][\w.-]*(?: ?= ?[\w'.-]+)?)[`'\"]|(?<![\w./])([a-z][a-z0-9]*(?:_[a-z0-9]+)+(?:=\w+)?)"
    r"|\b([A-Z]+(?:_[A-Z0-9]+)+)\b"
)
_FRAMEWORKS = "|".join(added_frameworks())
# What is a setting without such a mark.
_SPOKEN = re.compile(
    r"parallel|batch[ _]size|precision|strategy|optimizer|\bstage\b|process|world[ _]size|\bdevices|\bnodes\b|dtype|offload"
    r"|generations|config|fp16|bf16|fp8|FSDP|ZeRO|LoRA|quantiz|seq len|attention heads|accelerator|backend"
    rf"|{_FRAMEWORKS}",
    re.IGNORECASE,
)
# Files in which a package reads its settings. Elsewhere its exceptions are about data or calls.
_SETTINGS_FILE = re.compile(
    r"(?:arg|conf|param|option|setting|trainer|plugin|strateg|launch|connector|engine|parallel|initiali|modeling_utils"
    rf"|quanti|precision|dataclass|accelerator|fsdp|{_FRAMEWORKS}|distributed|cli|wrap)[\w]*(?:[/\\]\w+)?\.py$",
    re.IGNORECASE,
)
# What only settings of distributed training speak of: an exception with it is about them in any file of a package.
_LAYOUT = re.compile(
    r"parallel(?:[_ -]?size|ism)|world[_ ]size|micro[-_ ]?batch|pipeline[_ ]stage|\bZeRO\b|\bZero \d|zero[_ ]stage|\bFSDP\b"
)
# Calls that raise what happened in another process: whose the exception is stands there.
_HANDED_ON = re.compile(r"ray[/\\]_private[/\\](?:worker|client_mode_hook|auto_init_hook)\.py$")
# Failure classes of settings: what the message says is the cause.
_CLASSES_OF_SETTINGS = frozenset(
    {
        "mixed-options",
        "world-size-mismatch",
        "parallel-layout",
        "ds-batch-config",
        "ds-config-invalid",
        "ds-config-auto",
    }
)
_ADVICE = re.compile(
    r"(?:^|(?<=[.;:!,] ))((?:please |Try|Consider|Please|Set|Use|Pass|Specify|Make sure|Ensure|Either|Choose|Remove|Reduce"
    r"|Increase|Decrease|Provide|Add|Enable|Disable|Install|Reinstall|Upgrade|Update|Rebuild|Call|Run|Switch|Convert|Create"
    r"|Place|Omit|Restart|To (?:fix|resolve|avoid|suppress|use|enable|disable)|You (?:can|need to|must|should)"
    r"|you (?:need to|must|should))\b[^\n]*)"
)
# The form that only repeats what a package advises: what raises it is then known, and a part that starts or lays out.
_ADVISED = "settings-advised"
_STARTING_FILE = re.compile(
    r"torch[/\\](?:distributed|nn[/\\]parallel|cuda|utils[/\\](?:cpp_extension|checkpoint|data))\b|(?:services|node|worker|actor"
    r"|runner|session|loader|checkpoint|platforms|executor|device|environment|compiler|driver|build|hook|loop|fetch)\w*(?:[/\\]\w+)?\.py$"
)
# Advice that helps the makers only.
_REPORT = re.compile(r"[Pp]lease (?:help )?(?:report|file|open|raise|submit|create)\b")
_VALUES = re.compile(
    r"(?:[Aa]llowed (?P<of>\w+) values?|(?:[Vv]alid|[Pp]ossible) (?:values|options|choices)(?: for (?:the )?(?P<for>[\w ]{3,50}?))?"
    r"|(?:must|should) be (?:one of|in|either)|[Ee]xpected (?:one of|either)|[Cc]hoose (?:between|from)"
    r"|[Ss]upported \w+|[Aa]llowed values)(?: are)?(?::| (?=[\[({'\"`\d])) ?(?P<values>[^\n]{1,200})"
)
# What stands behind the values: the one that was given.
_GIVEN = re.compile(r"[.,;]? \(?(?:but )?(?:[Gg]ot|received)\b")
_BOUND = re.compile(
    r"(?:must|should|has to|have to) be (?P<bound>(?:at (?:least|most)|(?:strictly )?(?:greater|larger|less|smaller)|[><]"
    r"|one of|in\b|either|between|non-|positive|an? (?:positive|non-|integer|bool|int\b|float|string|list|power))"
    r"(?:[^.,;\n]|\.(?=\S)|,(?= ['\w]+\b(?: or|,|$))){0,100})"
)
_ASKED = re.compile(
    r"requires? (?P<needed>(?:[^.;\n]|\.(?=\w)){3,120})|(?:^|[,.:;] )(?P<set>[^.,;:\n]{3,90}?) (?:must|has to|have to|needs? to|should) be"
    r" (?P<how>set|specified|provided|used|given|enabled|passed|defined|disabled|True|False)\b"
)
_MOST_SETTINGS = 6


def with_refusal(hit: Hit, text: str) -> Hit | None:
    """Return a refusal with who refuses, what it names and advises, or ``None`` where it is not about settings."""
    if not hit.signature.id.startswith(_PREFIX):
        return hit
    frames = [frame for frame in frames_before(text, hit.position) if not _HANDED_ON.search(frame.file)]
    sentence = _whole(hit.groups["said"], text[hit.position :])
    settings = list(dict.fromkeys(_settings_in(sentence)))
    if hit.signature.id == _ADVISED:
        return _advised(hit, frames[-1:], sentence)
    refuser = _refuser(frames[-1], sentence) if frames else _raiser(hit.text)
    if not refuser and hit.signature.id == "settings-said":
        return None
    is_spoken = bool(_SPOKEN.search(sentence))
    # Of a sentence that nobody is known to have said, more has to show that it is about settings.
    has_marks = (
        settings or is_spoken or _LAYOUT.search(sentence)
        if refuser
        else len({setting.partition("=")[0] for setting in settings}) > 1
        or (is_spoken and (settings or hit.signature.id == "settings-sizes"))
    )
    if refuser is None or not has_marks:
        return None
    advice = _advice_of(hit.signature.id, sentence, settings)
    if not advice:
        return None
    values = {"said": sentence, "refuser": refuser or "A program", "advice": advice}
    severity = hit.signature.severity if refuser else Severity.WARNING
    return dataclasses.replace(
        hit,
        signature=dataclasses.replace(hit.signature, severity=severity),
        groups={**hit.groups, **values},
    )


def only_refusals(hits: list[Hit]) -> list[Hit]:
    """Return the messages, and of the refusals the first. Another message on its line also says what the refusal says."""
    refusals = [hit for hit in hits if hit.signature.id.startswith(_PREFIX)]
    messages = [hit for hit in hits if not hit.signature.id.startswith(_PREFIX)]
    by_line = {(hit.source, hit.line): hit for hit in reversed(refusals)}
    spoken_of = {(hit.source, hit.line) for hit in messages}
    alone = [hit for hit in refusals if (hit.source, hit.line) not in spoken_of][:1]
    return [*(_beside(hit, by_line.get((hit.source, hit.line))) for hit in messages), *alone]


def _beside(hit: Hit, refusal: Hit | None) -> Hit:
    """Return the message of a class of wrong settings with the sentence, the advice and the numbers of its line."""
    signature = hit.signature
    if signature.cause not in _CLASSES_OF_SETTINGS or signature.variants or hit.groups:
        return hit
    if refusal is None:
        numbers = numbers_that_fit(hit.text)
        fix = f"{numbers}. {signature.fix}" if numbers else signature.fix
        return dataclasses.replace(hit, signature=dataclasses.replace(signature, fix=fix))
    message = f"{signature.message.rstrip('.')}: {refusal.groups['said']}."
    fix = f"{refusal.groups['advice']}. {signature.fix}"
    return dataclasses.replace(hit, signature=dataclasses.replace(signature, message=message, fix=fix))


def _raiser(text: str) -> str:
    """Return the package whose own class of exception a line names, empty for none."""
    return next((package for name, package in words().exceptions.items() if name in text), "")


def _advised(hit: Hit, frames: list[LoggedFrame], sentence: str) -> Hit | None:
    """Return what a package advises about its start, or ``None`` where nobody is known to advise it."""
    owners = [frame.package for frame in frames if frame.package and _starts(frame)] or [_raiser(hit.text)]
    advice = advice_in(sentence)
    if not owners[0] or not advice:
        return None
    return hit.naming(said=sentence, refuser=component_of(owners[0]) or owners[0], advice=advice)


def _starts(frame: LoggedFrame) -> bool:
    file = _SETTINGS_FILE if frame.package != "torch" else _STARTING_FILE
    return bool(file.search(frame.file) or _STARTING_FILE.search(frame.file))


def _refuser(frame: LoggedFrame, sentence: str) -> str | None:
    """Return the package whose reading of settings raises, a file of settings of one's own, or ``None``."""
    package = frame.package
    if not (_SETTINGS_FILE.search(frame.file) or (package and _LAYOUT.search(sentence))):
        return None
    if package == "torch" and not re.search(r"torch[/\\]distributed[/\\]", frame.file):
        return None
    return (component_of(package) or package) if package else re.split(r"[/\\]", frame.file)[-1] if sentence else None


def _whole(sentence: str, behind: str) -> str:
    """Return the sentence with the items of a list that follow it."""
    lines = behind.split("\n")[1:6]
    items = []
    for line in lines:
        if not re.match(r"(?:\[?\w*\]?:? ?)- ?\w", line):
            break
        items.append(line.strip().removeprefix("- "))
    sentence = re.sub(r"[\"']\)?$", "", sentence.strip())
    return f"{sentence} {'; '.join(items)}".strip()[:500].rstrip(".")


def _settings_in(sentence: str) -> Iterator[str]:
    for match in _NAMED.finditer(sentence):
        yield next(group for group in match.groups() if group)


def _advice_of(form: str, sentence: str, settings: list[str]) -> str:
    """Return what to do: what the sentence advises, what it names, or what its form asks for."""
    if advice := advice_in(sentence):
        return advice
    if values := _values_in(sentence, settings) or numbers_that_fit(sentence):
        return values
    names = ", ".join(settings[:_MOST_SETTINGS])
    if form == "settings-sizes":
        return f"Change one of the numbers so that they fit{names and f' ({names})'}"
    if form == "settings-need":
        return _asked_in(sentence) or f"Set {names or 'what the message asks for'}, or leave out what asks for it"
    if form == "settings-values":
        bound = _BOUND.search(sentence)
        allowed = bound["bound"].strip() if bound else "as the message allows"
        return f"Give {settings[0] if settings else 'the setting'} a value that is {allowed}"
    if form == "settings-said":
        return names and f"Correct what the message says of {names}"
    return f"Leave out one of them: {names}" if len(settings) > 1 else f"Leave out {names or 'one of the two'}"


def advice_in(sentence: str) -> str:
    """Return what a sentence tells somebody to do, empty for nothing, and for a wish that its makers have."""
    match = _ADVICE.search(sentence)
    if match is None or match[1].count(" ") < 2 or _REPORT.match(match[1]):
        return ""
    advice = match[1][:300].rstrip(" .")
    return advice[:1].upper() + advice[1:]


def _values_in(sentence: str, settings: list[str]) -> str:
    match = _VALUES.search(sentence)
    if match is None:
        return ""
    values = _GIVEN.split(match["values"])[0].rstrip(" .")
    named = (n for n in settings if ("_" in n or n.startswith("--")) and n not in values)
    return f"Give {match['of'] or match['for'] or next(named, 'it')} one of these values: {values}"


# How a setting has to be, as an order.
_ORDERS = {
    "set": "Set",
    "specified": "Specify",
    "provided": "Provide",
    "used": "Use",
    "given": "Give",
    "passed": "Pass",
    "enabled": "Enable",
    "disabled": "Disable",
    "defined": "Define",
}


def _asked_in(sentence: str) -> str:
    match = _ASKED.search(sentence)
    if match is None:
        return ""
    setting, how = match["set"], match["how"]
    if match["needed"]:
        setting, _, how = match["needed"].rpartition(" to be ")
    if not setting:
        return f"Set what it asks for ({match['needed'].strip()}), or leave out what asks for it"
    order = f"{_ORDERS[how]} {setting.strip()}" if how in _ORDERS else f"Set {setting.strip()} to {how.strip()}"
    return f"{order}, or leave out what asks for it"
