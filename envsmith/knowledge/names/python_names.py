"""Names of the standard library that a release of Python does not have any more.

Asked for in CPython 3.6 to 3.13, each name of each module: those that went, without what a module had imported itself.
Modules with names that people give their own (``parser``, ``symbol``, ``formatter``, ``chunk``) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from envsmith.knowledge.names.scopes import Chain

# By the minor version of Python 3 from which on they are not there.
_GONE = {
    8: "cgi.escape cgi.parse_qs cgi.parse_qsl macpath platform.dist platform.linux_distribution time.clock",
    9: "base64.decodestring base64.encodestring dummy_threading fractions.gcd plistlib.readPlist plistlib.readPlistFromBytes "
    "plistlib.writePlist plistlib.writePlistToBytes sys.getcheckinterval sys.setcheckinterval",
    10: "collections.AsyncGenerator collections.AsyncIterable collections.AsyncIterator collections.Awaitable "
    "collections.ByteString collections.Callable collections.Collection collections.Container collections.Coroutine "
    "collections.Generator collections.Hashable collections.ItemsView collections.Iterable collections.Iterator "
    "collections.KeysView collections.Mapping collections.MappingView collections.MutableMapping "
    "collections.MutableSequence collections.MutableSet collections.Reversible collections.Sequence collections.Set "
    "collections.Sized collections.ValuesView",
    11: "asyncio.coroutine binhex inspect.ArgSpec inspect.formatargspec inspect.getargspec",
    12: "asynchat asyncore configparser.SafeConfigParser distutils imp importlib.find_loader importlib.util.module_for_loader "
    "importlib.util.set_loader importlib.util.set_package locale.format pkgutil.ImpImporter pkgutil.ImpLoader smtpd "
    "ssl.match_hostname ssl.wrap_socket",
    13: "aifc audioop cgi cgitb configparser.LegacyInterpolation crypt imghdr lib2to3 locale.resetlocale mailcap nis nntplib "
    "ossaudiodev pipes sndhdr spwd sunau telnetlib typing.io typing.re unittest.findTestCases unittest.getTestCaseNames "
    "unittest.makeSuite uu xdrlib",
}
SINCE: Mapping[Chain, int] = {tuple(name.split(".")): minor for minor, names in _GONE.items() for name in names.split()}
_TOPS = frozenset(chain[0] for chain in SINCE)


def gone_name(chain: Chain) -> tuple[str, int] | None:
    """Return the name that a chain goes through and a Python 3 lacks, with the minor version from which on it does."""
    if chain[0] not in _TOPS:
        return None
    prefixes = (chain[:end] for end in range(1, len(chain) + 1))
    minors = ((".".join(prefix), SINCE[prefix]) for prefix in prefixes if prefix in SINCE)
    return min(minors, key=lambda pair: pair[1], default=None)


def may_take_gone(text: bytes, minor: int) -> bool:
    """Return whether a source is worth reading for names that a Python 3 lacks: an import at the left edge, a dotted name.

    Many megabytes are asked, so every pattern begins with what few places have.
    """
    lines = b"\n" + text
    return any(word in lines and pattern.search(lines) for word, pattern in _patterns(minor))


@cache
def _patterns(minor: int) -> tuple[tuple[bytes, re.Pattern[bytes]], ...]:
    members: dict[str, list[str]] = {}
    for chain in (chain for chain, since in SINCE.items() if since <= minor):
        members.setdefault(".".join(chain[:-1]), []).append(chain[-1])
    tops = "|".join(members.pop("", ["-"]))
    texts = {"import ": rf"\n(?:import|from)[ \t]+(?:[\w., \t]*,[ \t]*)?(?:{tops})\b"}
    for module, names in members.items():
        words, path = "|".join(names), re.escape(module)
        texts[f"from {module}"] = rf"\nfrom {path}(?:\.| import (?:\([^)]*|[^\n]*)\b)(?:{words})\b"
        texts[f"import {module}"] = rf"{path}\.(?:{words})\b"
    return tuple((word.encode(), re.compile(text.encode())) for word, text in texts.items())
