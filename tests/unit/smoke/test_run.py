"""The outer parent, with six-line agents instead of the real one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from envsmith.errors import InterruptedRunError, SmokeError
from envsmith.smoke import run
from envsmith.smoke.plan import Plan, Timeouts
from envsmith.smoke.run import LocalTarget, torchrun_argv

PLAN = Plan.build({"torch": "2.13.0"}, ranks=2, steps=False).with_(cases=Plan.build({}, ranks=2).cases[:2])
READ = "import sys,json;b=sys.stdin.buffer;n=int(b.readline());b.read(n);plan=json.loads(b.readline())\ndef say(**e):print(json.dumps(e),flush=True)\n"
GOOD = (
    "say(event='hello');say(event='loaded',torch='2.13.0+cpu');say(event='placement',backend='gloo',ranks=2,sentence='here')\n"
    "for c in range(len(plan['cases'])):\n for r in range(2): say(event='row',run='collectives',row='case',rank=r,case=c,status='ok',ms=1)\n"
    "say(event='bye',seconds={'total':1.0},leftover=[])\n"
)


@dataclass
class Fake:
    code: str
    killed: list[int] = field(default_factory=list)

    def argv(self, args: list[str]) -> list[str]:
        return [sys.executable, "-c", READ + self.code]

    def env(self) -> dict[str, str]:
        return {}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.killed.append(process.pid)
        process.kill()


def test_good_agent_passes_and_progress_is_reported() -> None:
    seen: list[run.SmokeProgress] = []
    result = run.run(PLAN, Fake(GOOD), progress=seen.append)
    assert result.passed
    assert result.counts() == {"pass": 2}
    assert result.seconds["total"] == 1.0
    assert [p.phase for p in seen] == ["import", "collectives", "collectives", "done"]
    assert seen[-2].finished == seen[-2].total == 2


def test_step_is_named_from_its_begin_on_and_its_lines_count_no_cases() -> None:
    step = "deepspeed zero-2 fp32"
    says = f"say(event='begin',run={step!r});say(event='row',run={step!r},row='step',rank=0,status='ok')\n"
    seen: list[run.SmokeProgress] = []
    run.run(PLAN, Fake(GOOD.replace("say(event='bye'", says + "say(event='bye'")), progress=seen.append)
    assert [p.line for p in seen[-3:-1]] == [f"{step} ...", f"{step} ok"]


def test_plan_that_is_larger_than_a_pipe_arrives_whole() -> None:
    plan = Plan.build({"torch": "2.13.0"}, tier="full", ranks=2, steps=False)
    assert run.run(plan, Fake(GOOD)).counts()["pass"] > 1000


def test_agent_that_dies_is_named_with_its_last_words() -> None:
    result = run.run(PLAN, Fake("say(event='hello')\nprint('glibc is too old',file=sys.stderr)\nsys.exit(9)"))
    assert not result.passed
    assert "status 9" in result.summary
    assert "glibc is too old" in result.summary


def test_agent_that_never_speaks_is_a_smoke_error() -> None:
    with pytest.raises(SmokeError) as caught:
        run.run(PLAN, Fake("print('no libtorch',file=sys.stderr);sys.exit(1)"))
    assert "no libtorch" in caught.value.details


def test_silent_agent_is_ended_at_the_outer_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "outer_deadline", property(lambda self: 0.5))
    monkeypatch.setattr(run, "_TIDYING", 0.3)  # it ignores what asks it to end
    target = Fake("import signal,time;signal.signal(signal.SIGTERM,signal.SIG_IGN);say(event='hello');time.sleep(60)")
    result = run.run(PLAN, target)
    assert target.killed
    assert result.exit_code == 5
    assert "outer deadline" in result.summary


def test_noise_on_standard_output_is_not_an_event_and_does_not_hide_one() -> None:
    result = run.run(PLAN, Fake("print('Welcome!');print('[1,2]');print('{\"event\": 7}')\n" + GOOD))
    assert result.passed


def test_interpreter_that_does_not_exist_is_a_smoke_error() -> None:
    with pytest.raises(SmokeError, match="Cannot start"):
        run.run(PLAN, LocalTarget(python=Path("/does/not/exist/python")))


def test_interrupt_ends_the_agent_and_says_how_far_it_came() -> None:
    target = Fake("import time\nsay(event='hello')\ntime.sleep(60)")

    def interrupt(_: run.SmokeProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match=r"after 0 of \d+ cases and 0 of \d+ steps, of which none failed"):
        run.run(PLAN, target, progress=interrupt)


def test_probe_reads_versions_without_importing_torch() -> None:
    found = run.probe(LocalTarget(python=Path(sys.executable)))
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["numpy"] == (version("numpy") if find_spec("numpy") else "none")


def test_wrong_torch_is_a_configuration_failure_whatever_the_cases_say() -> None:
    plan = PLAN.with_(versions={"torch": "2.15.0+cu132"})
    result = run.run(plan, Fake(GOOD))
    assert (result.passed, result.exit_code) == (False, 2)
    assert "the cell says torch 2.15.0+cu132, but 2.13.0+cpu is loaded" in result.summary


def test_local_target_puts_its_own_directory_first_on_the_path() -> None:
    assert LocalTarget(python=Path("/venv/bin/python")).env()["PATH"].startswith("/venv/bin:")


def test_launchers_start_one_rank_per_process_and_never_restart() -> None:
    one = torchrun_argv(python="p", agent="agent.py", plan="plan.json", events="e.%r", ranks=4)
    assert one[one.index("--max-restarts") + 1] == "0"
    assert "--standalone" in one
    two = torchrun_argv(
        python="p", agent="agent.py", plan="plan.json", events="e.%r", ranks=4, nodes=2, rendezvous="h:1"
    )
    assert two[two.index("--rdzv-endpoint") + 1] == "h:1"


def test_timeouts_are_given_to_the_agent_under_their_names() -> None:
    assert Timeouts(imports=1).to_json()["import"] == 1
