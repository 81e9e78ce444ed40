"""Every answer over the small knowledge, whole and read by people: cells, refusals, judgements and explanations.

ENVSMITH_UPDATE_GOLDEN=1 writes the texts again. Read the difference before it is committed.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envsmith.errors import EnvsmithError
from envsmith.model.cell import Platform, Request
from envsmith.model.finding import Refusal
from envsmith.model.version import Spec
from envsmith.solver import cells, check, constraints_for, solve
from envsmith.solver.explain import explain_cell, explain_rule, explain_upgrade
from envsmith.solver.solver import Solver

Golden = Callable[[str, str], None]
VALUES: dict[str, tuple[str | None, ...]] = {
    "alpha": (None, "1.0.0", "1.1.0", "2.0.0", "2.0.1"),
    "beta": (None, None, "0.2"),
    "torch": (None, "2.1.0+cu118", "2.2.0+cu121", "2.2.0", "2.3.0+cu130", "2.3.0+cu126", "2.2.0+cpu", "2.9.0"),
    "python": (None, "3.9", "3.11", "3.12"),
    "numpy": (None, None, "1.26.4", "2.0.0"),
    "driver": (None, None, "470.57.02", "535.54.03", "580.65.06"),
    "gpu": (None, None, "sm_70", "sm_86", "sm_90"),
    "glibc": (None, None, "2.17", "2.31"),
    "cuda": (None, None, "12.1", "13.0"),
}
REQUESTS: list[dict[str, Any]] = [
    {"frameworks": [], "constraints": {"torch": "*"}},
    *({"frameworks": names} for names in (["alpha"], ["beta"], ["alpha", "beta"])),
    *({"frameworks": ["alpha"], "constraints": {"torch": spec}} for spec in ("2.1", "2.2", ">=2.3", "<2.2,>=2.1", "2.4", ">=9")),
    *({"frameworks": ["alpha"], "constraints": {"cuda": spec}} for spec in ("11", "12.1", "13.0", "cpu")),
    *({"frameworks": ["alpha"], "constraints": {"python": spec}} for spec in ("3.9", "3.12", ">=3.10,<3.12")),
    *({"frameworks": ["alpha"], "driver": driver} for driver in ("470.57.02", "535.54.03", "580.65.06", "400")),
    *({"frameworks": ["alpha"], "gpus": gpus} for gpus in (("sm_70",), ("sm_90",), ("sm_70", "sm_90"), ("sm_100",), ("sm_70", "sm_100"))),
    *({"frameworks": ["alpha"], "exclude_newer": day} for day in ("2024-02-15", "2024-08-01", "2025-02-15", "2020-01-01")),
    *({"frameworks": {"alpha": spec}} for spec in ("1", "2", ">=1.1", "2.0.1", "2.1.0rc1", "3")),
    *({"frameworks": {"alpha": spec}, "constraints": {"numpy": numpy}} for spec in ("1", "2") for numpy in ("*", "1", ">=2")),
    {"frameworks": {"alpha": "2", "beta": "*"}},
    {"frameworks": {"alpha": "1"}, "constraints": {"pydantic": "*"}},
    {"frameworks": ["beta"], "constraints": {"torch": "2.3", "python": "3.12"}},
    {"frameworks": ["alpha"], "platform": Platform.LINUX_AARCH64},
    {"frameworks": ["alpha"], "constraints": {"cuda": "13.0"}, "driver": "535.54.03", "gpus": ("sm_70",)},
    {"frameworks": ["alpha"], "constraints": {"glibc": "2.17", "torch": "2.3"}},
    {"frameworks": ["alpha"], "narrowed": {"python": (Spec.parse("3.9"), "only Python 3.9 is installed here")}},
    {"frameworks": ["alpha"], "constraints": {"torch": "2.3"}, "narrowed": {"python": (Spec.parse("3.9"), "only Python 3.9 is here")}},
    {"frameworks": ["alhpa"]},
]  # fmt: skip
CELLS = [
    "alpha1.0.0-torch2.1.0-cu118-py39", "alpha1.1.0-torch2.2.0-cu121-py311", "alpha2.0.0-torch2.3.0-cu130-py312",
    "alpha2.0.0-torch2.3.0-cu126-py310", "beta0.2-torch2.2.0-cu121-py311", "beta0.1-torch2.1.0-cu118-py310",
    "beta0.2-torch2.3.0-cu126-py311", "alpha2.0.0-torch2.2.0-cpu-py39", "alpha1.1.0-torch2.2.0-cu121-py311-numpy2.0.0", "alpha9-torch2.2.0",
]  # fmt: skip
UPGRADES = (
    {"torch": ">=2.3"},
    {"torch": ">=2.4"},
    {"python": "3.12"},
    {"alpha": ">=2"},
    {"cuda": "13.0"},
    {"numpy": ">=2"},
    {"torch": "<2.2"},
)


def _answer(call: Callable[[], Any]) -> list[str]:
    try:
        answer = call()
    except EnvsmithError as error:
        refusal = getattr(error, "refusal", None)
        more = [json.dumps(refusal.to_json())] if isinstance(refusal, Refusal) else []
        return [f"{type(error).__name__}: {error.message}", *error.details, f"hint: {error.hint}", *more]
    if isinstance(answer, (list, tuple)):
        return [str(line) for line in answer]
    return [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in answer.to_json().items() if value]


def _text(sections: Iterator[tuple[object, list[str]]]) -> str:
    return "".join(f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections)


def test_each_request_is_answered_in_the_words_that_were_read(solver: Solver, golden: Golden) -> None:
    def sections() -> Iterator[tuple[object, list[str]]]:
        for wish in REQUESTS:
            yield wish, _answer(lambda wish=wish: solve(Request(**wish), solver=solver))

    golden("solve/requests.txt", _text(sections()))


def test_cells_of_a_request_come_in_the_order_that_was_read(solver: Solver, golden: Golden) -> None:
    def sections() -> Iterator[tuple[object, list[str]]]:
        for wish in REQUESTS[:8]:
            first = lambda wish=wish: [cell.id for cell in itertools.islice(cells(Request(**wish), solver=solver), 30)]  # noqa: E731
            yield wish, _answer(first)

    golden("solve/cells.txt", _text(sections()))


def test_each_case_is_judged_in_the_words_that_were_read(solver: Solver, golden: Golden) -> None:
    draw = random.Random(18)
    cases = [{name: value for name, values in VALUES.items() if (value := draw.choice(values))} for _ in range(100)]

    def sections() -> Iterator[tuple[object, list[str]]]:
        for number, case in enumerate(cases):
            platform = Platform.LINUX_AARCH64 if number % 10 == 9 else Platform.LINUX_64
            keep = tuple(case)[:1] if number % 3 == 0 else ()
            yield (
                f"{case} {platform.value} keep {keep}",
                _answer(lambda c=case, p=platform, k=keep: check(c, p, keep=k, solver=solver)),
            )

    golden("solve/cases.txt", _text(sections()))


def test_each_cell_and_each_upgrade_is_explained_in_the_words_that_were_read(solver: Solver, golden: Golden) -> None:
    def sections() -> Iterator[tuple[object, list[str]]]:
        for cell in CELLS:
            yield cell, _answer(lambda cell=cell: explain_cell(cell, solver=solver))
            for wish in UPGRADES:
                specs = {name: Spec.parse(spec) for name, spec in wish.items()}
                yield f"{cell} with {wish}", _answer(lambda c=cell, s=specs: explain_upgrade(c, s, solver=solver))

    golden("solve/explained.txt", _text(sections()))


def test_each_rule_is_explained_in_the_words_that_were_read(solver: Solver, golden: Golden) -> None:
    def sections() -> Iterator[tuple[object, list[str]]]:
        for rule, platform in itertools.product(solver.knowledge().rules, Platform):
            yield (
                f"{rule.id} {platform.value}",
                _answer(lambda r=rule.id, p=platform: explain_rule(r, p, solver=solver)),
            )

    golden("solve/rules.txt", _text(sections()))


@pytest.mark.parametrize("framework", ["alpha", "beta"])
def test_each_cell_demands_of_the_resolver_what_was_read(framework: str, solver: Solver, golden: Golden) -> None:
    found = list(itertools.islice(cells(Request(frameworks=[framework]), solver=solver), 12))

    golden(
        f"solve/demands-{framework}.txt",
        _text((cell.id, _answer(lambda c=cell: constraints_for(c, solver=solver))) for cell in found),
    )
