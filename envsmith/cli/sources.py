"""``--source`` and ``--compile``: what is built from the user's source archives. The same on ``lock`` and ``build``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envsmith.base.json_types import JsonDict
from envsmith.base.progress import Progress
from envsmith.cli.declare import several
from envsmith.cli.demands import demands_of, gather
from envsmith.cli.flags import LockFlags, RequestFlags
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.runtime import nvcc_cuda
from envsmith.lock.index.archives import SourceWish, parse_wish, read_archive
from envsmith.model.cell import Request
from envsmith.model.lock import Compile, GivenArchive
from envsmith.model.plain import plain_value
from envsmith.model.project_name import normal_name
from envsmith.model.version import Spec
from envsmith.net.http import HttpClient

if TYPE_CHECKING:
    from envsmith.builder.options import Options

_VARIABLE = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*:\s*(?P<variable>[A-Z][A-Z0-9_]{0,79})=(?P<value>.*)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFlags:
    """The flags as they were typed."""

    source: tuple[str, ...] = several(
        "NAME@ARCHIVE#sha256=HEX",
        "Build NAME from this .tar.gz (a path or an https address) instead of what the index has; repeatable. "
        "NAME==VERSION@… where the archive does not state its version.",
    )
    compile_: tuple[str, ...] = several(
        "NAME:VARIABLE=VALUE",
        f"Set while NAME is compiled in the pinned builder, e.g. {EXAMPLE}:DS_BUILD_FUSED_ADAM=1; repeatable.",
    )

    def parse(self) -> Sources:
        """Parse both. ``UsageError`` for a flag that does not parse, or a distribution that is named twice."""
        wishes = tuple(parse_wish(text) for text in self.source)
        names = [wish.name for wish in wishes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"Cannot use --source {twice[0]}: it is given twice.", hint="Give one archive for each package."
            )
        variables: dict[str, dict[str, str]] = {}
        for text in self.compile_:
            name, variable, value = _variable(text)
            if variables.setdefault(name, {}).setdefault(variable, value) != value:
                raise UsageError(
                    f"Cannot use --compile {name}: {variable} is given twice.", hint="Give each variable once."
                )
        return Sources(wishes=wishes, variables={n: tuple(sorted(v.items())) for n, v in sorted(variables.items())})


def lock_options(
    flags: RequestFlags, sources: SourceFlags, locking: LockFlags, *, flavour: str, conda: bool, **further: Any
) -> Options:
    """Return what the flags that ``lock`` and ``build`` share ask for. ``conda`` says whether a Conda lock is tried."""
    from envsmith.builder.options import Options

    archives = sources.parse()
    gathered = gather(flags)
    request, compiled = archives.read(gathered.request(), offline=locking.offline)
    if cuda := nvcc_cuda(request, flavour):
        request = request.narrow("cuda", *cuda)
    conda_request = locking.conda(request.exclude_newer)
    return Options(
        request=request,
        request_text=gathered.text(flavour=flavour, sources=archives.text),
        compile=compiled,
        flavour=flavour,
        conda=conda_request if conda else None,
        locked=locking.locked,
        frozen=locking.frozen,
        offline=locking.offline,
        **further,
    )


def plan(
    flags: RequestFlags, options_of: Callable[[RequestFlags], Options], progress: Progress
) -> tuple[Options, JsonDict]:
    """Return the options of a lock, and what ``--json`` says of what was inferred from ``--code``."""
    if flags.code is None:
        return options_of(flags), {}
    from envsmith.cli.code import lock_plan  # only who has code waits for its readers

    return lock_plan(flags, demands_of(flags), options_of, progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Both flags, parsed; no archive has been read yet."""

    wishes: tuple[SourceWish, ...] = ()
    variables: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return the flags in one order, for what a lock says it was made from. Without flags it is empty."""
        texts = [wish.text for wish in sorted(self.wishes, key=lambda w: w.name)]
        texts += [f"--compile {name}:{n}={v}" for name, pairs in sorted(self.variables.items()) for n, v in pairs]
        return " ".join(texts)

    def read(self, request: Request, *, offline: bool) -> tuple[Request, Compile]:
        """Read the archives and return the request with the releases that they are.

        Raises what :func:`read_archive` raises.
        """
        if not self.wishes:
            return request, Compile(variables=self.variables)
        fetcher = HttpClient(offline=offline)
        archives = tuple(read_archive(wish, fetcher) for wish in self.wishes)
        return _with(request, archives), Compile(archives=archives, variables=self.variables)


def _with(request: Request, archives: Iterable[GivenArchive]) -> Request:
    """Put the release of a component's archive into the cell, so that its rules hold and the cell's name shows it."""
    table = components()
    constraints = dict(request.constraints)
    frameworks = dict(request.frameworks)
    for archive in archives:
        component = table.find(archive.name)
        if component is None or (component.distributions and archive.name not in component.distributions):
            continue
        place = frameworks if component.name in frameworks else constraints
        exact = Spec.parse(f"=={archive.version}")
        spec = place.get(component.name)
        if spec is not None and not spec.contains(archive.version):
            raise UsageError(
                f"Cannot use --source {archive.name}: the archive is {archive.version}, and the request asks for "
                f"{component.name} {spec}.",
                hint=f"Change the request to {component.name}=={archive.version}, or give another archive.",
            )
        place[component.name] = exact
    return replace(request, constraints=constraints, frameworks=frameworks)


def _variable(text: str) -> tuple[str, str, str]:
    match = _VARIABLE.fullmatch(text) if len(text) <= 600 else None
    if not match:
        raise UsageError(
            f"Cannot read --compile {text[:80]!r}: it is not NAME:VARIABLE=VALUE.",
            hint=f"Type for example --compile {EXAMPLE}:DS_BUILD_FUSED_ADAM=1.",
        )
    try:
        return normal_name(match["name"]), match["variable"], plain_value(match["value"])
    except ValueError as error:
        raise UsageError(
            f"Cannot read --compile {match['name']}:{match['variable']}: {error}.",
            hint="Use plain letters, digits and signs in the value.",
        ) from None
