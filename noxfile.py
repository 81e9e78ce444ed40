"""Sessions: ``nox`` alone runs lint, types and unit tests; the others by name."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
PYPROJECT = nox.project.load_toml("pyproject.toml")


def _install(session: nox.Session, *groups: str) -> None:
    session.install("-e", ".[all]", *(dep for g in groups for dep in nox.project.dependency_groups(PYPROJECT, g)))


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, rules and format."""
    _install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    _install(session, "lint")
    session.run("mypy")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Unit and property tests."""
    _install(session, "test")
    session.run("pytest", "-n", "auto", "-m", "not integration and not slow", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """The real parts: package index, torch, container engine."""
    _install(session, "test")
    session.run("pytest", "-m", "integration", "--randomly-dont-reorganize", *session.posargs)
