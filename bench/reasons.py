"""Whether the reasons of an answer are its reasons: sampled requests, and for each sentence of `why` and `explain` its opposite is forced.

`N is newer, but R` is true when the release cannot be had beside the request and the choices before it, R names a set of rules and wishes
that cannot hold together with it, and any member of R can go. `no test of it is known` is true when the release can be had, without a
warning that the answer does not have, and no known test speaks of it. A refusal is true when its members cannot hold together and any of
them can go. What a sentence says of rules is compared with their own words.

    python bench/reasons.py [--answers N] [--seed N] [--show]
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from dataclasses import dataclass
from datetime import date

from envsmith.errors import UsageError
from envsmith.model.cell import Platform, Request
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, public
from envsmith.solver import default_solver
from envsmith.solver.choices import _of_default_index, reasons
from envsmith.solver.explain import explain_cell, pose_cell
from envsmith.solver.kernel import Net
from envsmith.solver.prefer import A_STEP, PYTHON_ORDER
from envsmith.solver.problem import RuleNogoods, Wish
from envsmith.solver.refusal import conflict_members

FRAMEWORKS = ("deepspeed", "megatron-core", "colossalai", "horovod", "ray", "accelerate", "lightning", "nemo-toolkit")
GPUS = ("sm_61", "sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
DRIVERS = ("470.82.01", "525.60.13", "535.54.03", "550.54.14", "580.65.06")
COMPANIONS = ("transformers", "flash-attn", "transformer-engine", "peft", "numpy", "trl", "bitsandbytes")
DAYS = ("2023-06-30", "2024-03-31", "2025-01-31", "2025-12-31")
IMPOSSIBLE = "it cannot be had beside what comes before it"
# The local part of a release of torch.
_BUILD = re.compile(r"(torch \d[\w.]*)\+\w+")
HIDDEN = "hidden"  # the choices before a release are no part of what a sentence says


def sampled(chance: random.Random, compiled) -> Request:
    """A request as people write them: a framework, often with a host, a companion, a bound or a day."""

    def some(name: str) -> Spec:
        values = [v for v in compiled.versions.get(name, ()) if v and v[0].isdigit()]
        version = public(chance.choice(values))
        minor = ".".join(version.split(".")[:2])
        return Spec.parse(chance.choice((f"=={version}", f">={minor}", f"<={version}", f"=={minor}.*")))

    known = [f for f in FRAMEWORKS if f in compiled.versions]
    name = chance.choice(known[:3] if chance.random() < 0.7 else known)
    constraints = {c: some(c) for c in ("torch", "python", "cuda") if chance.random() < 0.15}
    for companion in chance.sample(COMPANIONS, chance.choice((0, 0, 1, 1, 2))):
        constraints[companion] = Spec.parse("*") if chance.random() < 0.5 else some(companion)
    return Request(
        frameworks={name: some(name) if chance.random() < 0.25 else Spec.parse("*")},
        constraints={c: s for c, s in constraints.items() if c != name},
        platform=Platform.LINUX_AARCH64 if chance.random() < 0.1 else Platform.LINUX_64,
        gpus=(chance.choice(GPUS),) if chance.random() < 0.4 else (),
        driver=chance.choice(DRIVERS) if chance.random() < 0.25 else None,
        exclude_newer=chance.choice(DAYS) if chance.random() < 0.2 else None,
    )


@dataclass
class Judge:
    """One posed request with its answer: forces releases, and tells whether a sentence holds."""

    solver: object
    posed: object
    answer: object

    def values(self, name: str):
        variable = self.posed.problem.names.index(name)
        return variable, self.posed.problem.values[variable]

    def chosen(self, name: str) -> int:
        return self.answer.domains[self.values(name)[0]].bit_length() - 1

    def mask(self, name: str, label: str) -> int:
        """A release, of torch its builds with CUDA where it has such and the answer has CUDA."""
        same, values = public if name == "torch" else str, self.values(name)[1]
        builds = [i for i, v in enumerate(values) if v is not None and same(v) == label]
        cuda = name == "torch" and self.answer.cell.components.get("cuda", "cpu") != "cpu"
        return sum(1 << i for i in ([i for i in builds if not values[i].endswith("+cpu")] if cuda else []) or builds)

    def wish(self, name: str, mask: int, label: str = HIDDEN) -> Wish:
        return Wish(name, label, ((self.values(name)[0], mask),), reason=HIDDEN)

    def before(self, name: str) -> list[Wish]:
        """The choices that come before a component, as wishes."""
        order = [*self.posed.preference.frameworks, "torch", "cuda", "python", *self.posed.preference.companions]
        order = [n for n in order if n in self.posed.problem.names]
        earlier = [self.wish(n, 1 << self.chosen(n)) for n in order[: order.index(name)]]
        with_cuda = self.posed.problem.with_cuda() if name == "torch" else None
        if with_cuda and with_cuda[1] >> self.chosen("cuda") & 1:
            earlier.append(Wish("a build", "without CUDA", (with_cuda,), reason="one with CUDA comes first"))
        return earlier

    def too_young(self, name: str, mask: int, because: str) -> str | None:
        """What is untrue of `it came out on DAY, more than N months after PART VERSION of DAY`."""
        if self.untested(name, mask) == IMPOSSIBLE:
            return IMPOSSIBLE
        day, part, version, start = re.fullmatch(
            r"it came out on (\S+), more than \d+ months after (\S+) (\S+) of (\S+)", because
        ).groups()
        dates, days = self.posed.problem.compiled.dates, []
        for component, index in ((name, mask.bit_length() - 1), (name, self.chosen(name)), (part, self.chosen(part))):
            days.append(dates[component][index] if index < len(dates[component]) else "")
        true = (day, start, version) == (days[0], days[2], self.answer.cell.components[part])
        late = date.fromisoformat(day) - date.fromisoformat(start) > A_STEP and days[1] < day
        return None if true and late else f"their days are {days}"

    def firm(self):
        """The problem in which each warning that the answer does not have is an error."""
        groups = []
        for group in self.posed.problem.groups:
            domains = self.answer.domains
            rows = tuple(r for r in group.nogoods if not all(domains[v] & m for v, m in r[1]))
            warned = group.severity is Severity.WARNING
            groups.append(RuleNogoods(group.rule, Severity.ERROR, rows) if warned else group)
        return type(self.posed.problem)(
            **{k: getattr(self.posed.problem, k) for k in ("compiled", "platform", "names", "components", "values")},
            groups=tuple(groups),
        )

    def settings(self, name: str):
        """Problems and further wishes under which a release may be impossible, the plainest first."""
        plain, firm = self.posed.problem, self.firm()
        earlier = self.before(name)
        masks = [m for kind in ("pre", "yanked") if kind in self.answer.avoided for m in getattr(self.posed, kind)]
        text = "none is taken unless asked for"
        left_out = [Wish("a pre-release", "or yanked release", tuple(masks), reason=text)] if masks else []
        return [
            (plain, []),
            (plain, earlier),
            (plain, [*left_out, *earlier]),
            (firm, left_out),
            (firm, [*left_out, *earlier]),
        ]

    def forced(self, name: str, mask: int, because: str) -> str | None:
        """What is untrue of `because` as the reason against a release, nothing when it is the reason."""
        possible, settings = [], self.settings(name)
        if name == "torch" and self.answer.cell.index == "default":
            settings += [(problem, [*wishes, _of_default_index(self.posed)]) for problem, wishes in settings]
        for problem, wishes in settings:
            tried = problem.with_wishes([*self.posed.problem.wishes, self.wish(name, mask), *wishes])
            stuck = self.solver.stuck(tried)
            if stuck is None:
                continue
            if fault := minimal(tried, stuck):
                return fault
            members = conflict_members(self.solver, tried, stuck, cause=False)
            messages = {m.message.removesuffix(" (a warning)") for m in members if not m.message.endswith(HIDDEN)}
            # A sentence may name the one build of a release that may be had.
            messages = {_BUILD.sub(r"\1", message) for message in messages}
            rest = _BUILD.sub(r"\1", because.replace(" (a warning)", ""))
            for message in sorted(messages, key=len, reverse=True):
                rest = rest.replace(message, "", 1) if message in rest else rest + "!"
            if not rest.replace(" and ", "").strip():
                return None
            possible.append(sorted(messages))
        return f"the reason is {possible[0]}" if possible else "nothing forbids it"

    def untested(self, name: str, mask: int) -> str | None:
        """What is untrue of `no test is known` as the reason."""
        for problem, wishes in self.settings(name):
            if self.solver.stuck(problem.with_wishes([*self.posed.problem.wishes, self.wish(name, mask), *wishes])):
                return IMPOSSIBLE
        for framework in self.posed.preference.frameworks:
            support = self.posed.preference.support[framework]
            torches = support.torch(mask.bit_length() - 1 if framework == name else self.chosen(framework))
            if torches & mask if name == "torch" else torches:
                return f"a test with {framework} is known"
        return None

    def stable(self, name: str) -> list[tuple[int, int]]:
        """The releases that are neither pre-releases nor yanked, as a mask."""
        variable, compiled = self.values(name)[0], self.posed.problem.compiled
        return [(variable, ~(compiled.pre.get(name, 0) | compiled.yanked.get(name, 0)))]

    def newest_tested(self, tested: list[int]) -> str | None:
        """Whether no newer torch is tested; a test of a build without CUDA says nothing of one with it."""
        values = self.values("torch")[1]
        for index in range(self.chosen("torch") + 1, len(values)):
            masks = [m for _, m in self.stable("torch")]
            rival = public(values[index]) != public(values[self.chosen("torch")]) and not values[index].endswith("+cpu")
            if rival and any(m >> index & 1 for m in tested) and all(m >> index & 1 for m in masks):
                return f"{values[index]} is tested and newer"
        return None

    def newest(self, name: str, *, admitted: bool) -> str | None:
        variable, values = self.values(name)
        same = public if name == "torch" else str
        for index in range(self.chosen(name) + 1, len(values)):
            masks = self.stable(name)
            masks += [m for w in self.posed.problem.wishes for m in w.masks] if admitted else []
            if same(values[index] or "") == same(values[self.chosen(name)]) or values[index] in (None, "none"):
                continue
            if all(m >> index & 1 for v, m in masks if v == variable):
                return f"{values[index]} is newer"
        return None


def explained(case: Judge, sentence: str) -> str | None:
    """What is untrue in a sentence of `explain`, where the rest of the cell stays, ``-`` when nothing was passed over."""
    match = re.fullmatch(
        r"(\S+) \S+: (\S+) is newer(?:; (.*?)\.(?: It could be had .*)?|, but (no test .*)\.|( and breaks no rule here)\.)",
        sentence,
        re.DOTALL,
    )
    if not match:
        return "-"
    name, mask = match[1], case.mask(match[1], match[2])
    tied = ("torch", "cuda") if name == "torch" else (name,)
    others = [w for w in case.posed.problem.wishes if w.component not in tied]
    stuck = [(p, s) for p in (case.posed.problem, case.firm())
             if (s := case.solver.stuck(p.with_wishes([*others, case.wish(name, mask)])))]  # fmt: skip
    if not match[3]:
        return "it cannot be had" if stuck else None
    for problem, conflict in stuck:
        members = conflict_members(case.solver, problem, conflict, cause=False)
        rules = {m.message for m in members if not m.is_wish}
        if rules == set(match[3].replace(" (a warning)", "").split(" and ")) or all(r in match[3] for r in rules):
            return minimal(problem, conflict)
    return "another rule forbids it" if stuck else "nothing forbids it"


def minimal(problem, stuck) -> str | None:
    """Whether a conflict is one, and any member of it can go."""
    nets = [Net.within(problem.full, w.masks) for w in stuck.wishes]
    nets += [Net(problem.full, [n for _, n in g.nogoods]) for g in stuck.groups]

    def holds(parts) -> bool:
        net = Net(problem.full).joined(parts)
        return net.solvable(net.begin()) is not None

    if holds(nets):
        return "the conflict can hold"
    return None if all(holds(nets[:i] + nets[i + 1 :]) for i in range(len(nets))) else "a member can go"


TORCH = r"torch (\S+) (?:is newer|was tested as well), but (.*)\."
NEWER = r"(\S+) \S+(?: \([^)]*\))?: (\S+) (?:is newer|is the usual choice), but (.*)\."


def judge(case: Judge, sentence: str) -> str | None:
    """What is untrue in one sentence, ``-`` when it says nothing that can be forced."""
    if match := re.fullmatch(TORCH, sentence, re.DOTALL):
        name, label, because = "torch", match[1], match[2]
    elif match := re.fullmatch(NEWER, sentence, re.DOTALL):
        name, label, because = match[1].replace("Python", "python"), match[2], match[3]
    elif match := re.match(r"(\S+) \S+: the newest (stable release|release that the request admits)", sentence):
        return case.newest(match[1], admitted="admits" in match[2])
    else:
        return other(case, sentence)
    mask = case.mask(name, label)
    if " was tested as well, but " in sentence:
        tiers = case.posed.preference.tested_torch(list(case.answer.domains), exact=True)
        if not mask & tiers[-1]:
            return "no test of it is known"
        mask &= tiers[-1]
    if because.startswith("no test of it"):
        return case.untested(name, mask)
    if because.startswith("it came out on"):
        return case.too_young(name, mask, because)
    return case.forced(name, mask, because)


def other(case: Judge, sentence: str) -> str | None:
    """Sentences that name no release that was passed over."""
    frameworks = case.posed.preference.frameworks
    if match := re.match(r"torch \S+ \([^)]*\): (the newest that is tested|tested|no test of this build)", sentence):
        index = case.chosen("torch")
        tested = [case.posed.preference.support[f].torch(case.chosen(f), exact=True) for f in frameworks]
        if match[1].startswith("no test") == any(mask >> index & 1 for mask in tested):
            return "the tests say otherwise"
        return case.newest_tested(tested) if match[1].startswith("the newest") else None
    if match := re.match(
        r"Python (\S+): the (?:usual choice|first of the usual order( that the request admits))", sentence
    ):
        variable, values = case.values("python")
        masks = [m for w in case.posed.problem.wishes for v, m in w.masks if v == variable and match[2]]
        first = next(v for v in PYTHON_ORDER if v in values and all(m >> values.index(v) & 1 for m in masks))
        return None if first == match[1] else f"{first} is the usual choice"
    return "-"


def judged(solver, answers: int, seed: int):
    """Yield ``(request, answer, sentences with what is untrue in each)`` of sampled requests, and the requests that were refused."""
    chance = random.Random(seed)
    while answers:
        try:
            request = sampled(chance, solver.compiled)
            posed = solver.pose(request)
        except UsageError:
            continue
        answer = solver.best(posed)
        if answer is None:
            stuck = solver.stuck(posed.problem)
            yield request, None, [("refused", minimal(posed.problem, stuck))]
            continue
        answers -= 1
        case = Judge(solver, posed, answer)
        sentences = [(s, judge(case, s)) for s in reasons(solver, posed, answer).why]
        posed = pose_cell(solver, answer.cell.id)
        if answer := solver.best(posed):
            case = Judge(solver, posed, answer)
            texts = explain_cell(answer.cell.id, solver=solver).sentences
            sentences += [(s, fault) for s in texts if (fault := explained(case, s)) != "-"]
        yield request, case.answer, sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=150)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--show", action="store_true", help="print each untrue reason")
    options = parser.parse_args()
    count: Counter[str] = Counter()
    for request, answer, sentences in judged(default_solver(), options.answers, options.seed):
        count["answers" if answer else "refusals"] += 1
        count["repeated"] += len(sentences) - len({s for s, _ in sentences})
        for sentence, fault in sentences:
            count["claims nothing" if fault == "-" else "reasons"] += 1
            count["untrue"] += fault not in {None, "-"}
            if options.show and fault not in {None, "-"}:
                print(f"{request}\n  {answer and answer.cell.id}\n  {sentence}\n  UNTRUE: {fault}\n")
    print(
        f"{count['answers']} answers and {count['refusals']} refusals (seed {options.seed}): {count['reasons']} reasons, "
        f"{count['untrue']} untrue, {count['repeated']} repeated; {count['claims nothing']} sentences claim nothing"
    )
    raise SystemExit(1 if count["untrue"] else 0)


if __name__ == "__main__":
    main()
