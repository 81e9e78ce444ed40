"""Shell words for a distribution's packages from a dated archive: the one that the base image itself names, so that no address is ours.

Debian's own images carry, as a comment above each live address, the archive's address of the day they were made of. apt is
pointed to those for one step, from a file below ``/dev`` that stays in no layer; the image keeps its live sources.
"""

from __future__ import annotations

__all__ = ["APT_DATED", "DATED_OPTIONS", "DATED_SOURCES", "apt_probe"]

# The mark before the date in what the probe prints.
APT_DATED = "ENVSMITH-DATED "
_LIVE = "/etc/apt/sources.list.d/debian.sources"
_DATED = "/dev/envsmith/dated.sources"
_COMMENT = r"^# *(https?://[^ ]+/([0-9]{8}T[0-9]{6}Z)/?)$"
# An archive's index is past its own date of expiry.
DATED_OPTIONS = f"-o Dir::Etc::sourcelist={_DATED} -o Dir::Etc::sourceparts=- -o Acquire::Check-Valid-Until=false -o APT::Update::Error-Mode=any"
# A comment with a dated address takes the place of the address in the line after it.
DATED_SOURCES = f"sed -E '\\|{_COMMENT}|{{N;s|^# *([^ ]+)\\nURIs:.*|URIs: \\1|}}' {_LIVE} > {_DATED}"


def apt_probe(names: str) -> str:
    """What installing ``names`` (plain package names) would add; ``$ca`` are apt's options for a private certificate authority.

    Prints :data:`APT_DATED` and the date when the dated archive answered; falls back to the base's live sources when it does not.
    """
    simulate = f"-qq --simulate install --no-install-recommends {names}"
    date = f"sed -nE 's|{_COMMENT}|\\2|p' {_LIVE} 2>/dev/null | sort -u | head -n 1"
    return (
        f"mkdir -p /dev/envsmith; day=$({date}); "
        f'if [ -n "$day" ] && {DATED_SOURCES} && apt-get $ca {DATED_OPTIONS} -o Acquire::Retries=1 -qq update; '
        f'then echo "{APT_DATED}$day"; apt-get $ca {DATED_OPTIONS} {simulate}; '
        f"else apt-get $ca -qq update && apt-get $ca {simulate}; fi"
    )
