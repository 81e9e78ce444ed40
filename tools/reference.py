"""The reference pages of the docs, made from the code: command line, exit codes, environment variables, schemas.

python tools/reference.py            write docs/reference/*.md; a test holds them to the code
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))  # where it is loaded by path, as tests do
import messages

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
_MADE = "<!-- made by tools/reference.py from the code: change that, not this -->\n\n"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _commands(inner, f"{path} {name}")


def _options(command: click.Command) -> Iterator[str]:
    """Give the rows of a command's options, under the headings that its help has."""
    context = click.Context(command)
    sections: dict[str, list[str]] = {}
    for parameter in command.params:
        heading = getattr(parameter, "section", "")
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Argument):
            sections.setdefault(heading, []).append(f"| `{parameter.make_metavar(context)}` | |")
        elif record is not None:
            flags, text = (part.replace("|", "\\|") for part in record)
            sections.setdefault(heading, []).append(f"| `{flags}` | {text} |")
    for heading, rows in sections.items():
        title = heading or ("Output" if len(sections) > 1 else "")
        yield from ([f"**{title}**", ""] if title else [])
        yield from ("| | |", "|---|---|", *rows, "")


def cli() -> str:
    """``cli.md``."""
    from envsmith.cli.app import cli as program

    lines = ["# Command line", "", "Results go to stdout, everything else to stderr. Every verb has `--help`.", ""]
    for path, command in _commands(program, "envsmith"):
        lines += [f"## {path}", "", inspect.cleandoc(command.help or "").replace("\b", ""), ""]
        lines += _options(command)
        examples = [*getattr(command, "examples", ()), *(command.epilog or "").replace("\b", "").splitlines()]
        examples = [line.strip() for line in examples if line.strip().startswith("envsmith ")]
        if examples:
            lines += ["**Examples**", "", "```sh", *examples, "```", ""]
    return "\n".join(lines)


def exit_codes() -> str:
    """``exit-codes.md``."""
    from envsmith.errors import EXIT_CODES

    rows = [
        f"| {code} | {text} |"
        for code, text in sorted({**EXIT_CODES, 70: "a fault of envsmith itself; report it"}.items())
    ]
    return "\n".join(["# Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""])


def variables() -> str:
    """``environment-variables.md``."""
    from envsmith.cli.variables import VARIABLES

    rows = [f"| `{name}` | {text} |" for name, text in sorted(VARIABLES.items())]
    note = "uv and pip read their own variables as well (`UV_*`, `PIP_*`): envsmith hands them on."
    return "\n".join(["# Environment variables", "", "| name | what it does |", "|---|---|", *rows, "", note, ""])


def schemas() -> str:
    """``envsmith-yaml.md``."""
    from envsmith.project.ci.library import config_schema

    schema = config_schema()
    properties = schema["properties"]
    if not isinstance(properties, dict):
        raise TypeError("the schema has no properties")
    rows = [f"| `{name}` | {value['description']} |" for name, value in properties.items()]
    finding = {
        "rule": "id of the rule (`envsmith explain RULE`)",
        "severity": "error, warning or note",
        "components": "component -> release or range",
        "message": "what is wrong",
        "evidence": "list of {kind, source, date, sha256?, note?}",
        "fix": "what to do, or null",
        "symptom, stage, inferred": "when known",
        "file, line": "`ci check`: where",
    }
    shape = [f"| `{name}` | {text} |" for name, text in finding.items()]
    return "\n".join(
        [
            "# envsmith.yaml and findings",
            "",
            "`envsmith ci schema` prints the JSON Schema. The same keys may stand in `[tool.envsmith]` of `pyproject.toml`. All are optional.",
            "",
            *["| key | meaning |", "|---|---|", *rows, ""],
            "## Findings",
            "",
            "`check`, `doctor` and `ci check` give findings of one shape:",
            "",
            *["| key | meaning |", "|---|---|", *shape, ""],
        ]
    )


PAGES = {
    "cli.md": cli,
    "exit-codes.md": exit_codes,
    "environment-variables.md": variables,
    "envsmith-yaml.md": schemas,
    "messages.md": messages.page,
}


def text_of(name: str) -> str:
    """Return a page as it has to read."""
    return _MADE + PAGES[name]().rstrip() + "\n"


def main() -> int:
    """Write the pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
