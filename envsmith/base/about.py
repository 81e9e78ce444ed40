"""What envsmith says of itself."""

from __future__ import annotations

VERSION = "0.1.0"
# The distribution. On the package index ``envsmith`` is a dotenv loader of another author.
DISTRIBUTION = "envsmith-train"


def command_for(extra: str) -> str:
    """Return the command that adds an extra to this copy: to its checkout, its wheel or what the index has."""
    # Heavy, and only a hint needs them: every start reads the version above.
    import shlex
    import sys
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    from envsmith.base.schema import parse_json

    try:
        copy = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    url = parse_json(copy.read_text("direct_url.json") or "{}")
    address = str(url.get("url", ""))
    if not address:
        requirement = f"{DISTRIBUTION}[{extra}]"
    elif address.startswith("file:"):
        requirement = f"{unquote(urlsplit(address).path)}[{extra}]"
    else:
        revision = url.get("vcs_info", {})
        source = f"{revision['vcs']}+{address}@{revision['commit_id']}" if revision else address
        requirement = f"{DISTRIBUTION}[{extra}] @ {source}"
    editable = "-e " if url.get("dir_info", {}).get("editable") else ""
    is_of_uv = (copy.read_text("INSTALLER") or "").strip() == "uv"
    program = f"uv pip install --python {shlex.quote(sys.executable)}" if is_of_uv else "pip install"
    return f"{program} {editable}{shlex.quote(requirement)}"
