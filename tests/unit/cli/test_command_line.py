"""What a person at the terminal meets: one clear line, the documented exit code, JSON on stdout and talk on stderr."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys

import click
import pytest

from envsmith.builder import arrow, locking
from envsmith.cli import app
from envsmith.cli.app import run
from envsmith.cli.solve import refusal_lines
from envsmith.errors import EXIT_CODES, NetworkError
from envsmith.model.finding import Conflict, Refusal
from envsmith.model.rule import Evidence, EvidenceKind


def test_help_lists_every_verb(capsys):
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in app.VERBS)


@pytest.mark.parametrize("verb", app.VERBS)
def test_every_verb_has_help(verb, capsys):
    assert run([verb, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_help_imports_no_heavy_module():
    heavy = ("networkx", "yaml", "rich", "docker", "rattler", "packaging", "torch", "uv")
    code = f"import sys; from envsmith.cli.app import run; run(['--help']); print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_solve_imports_neither_networkx_nor_yaml_when_the_cache_is_warm():
    code = (
        "import sys; from envsmith.cli.app import run; run(['solve', '--framework', 'deepspeed']);"
        "sys.modules.pop('x', None); print([m for m in ('networkx', 'yaml', 'rich', 'docker', 'rattler') if m in sys.modules])"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["slove"], "Try envsmith solve."),
        (["deepspeed", "solve"], "Write the verb first: envsmith solve deepspeed."),
        (["run", "python3", "-c", "1"], "Write -- before the command that it starts: envsmith run -- COMMAND -c."),
        (["solve", "deepspeed,transformers"], "Write a blank between them: deepspeed transformers."),
        (["solve", "--nonsense"], "--nonsense"),
        (["solve", "--framework", "deepsped"], "Try deepspeed."),
        (["solve", "--framework", "tensorflow"], "is not a framework"),
        (["solve", "--framework", "deepspeed==0.x; rm -rf /"], "not a version spec"),
        (["solve", "--framework", "deepspeed", "--torch", ">>2"], "--torch"),
        (["solve", "--framework", "deepspeed", "--gpu", "hh100"], "h100"),
        (["solve", "--framework", "deepspeed", "--driver", "new"], "not the version of a driver"),
        (["solve", "--framework", "deepspeed", "--platform", "windows"], "linux-64 or linux-aarch64"),
        (["solve", "--framework", "deepspeed", "--exclude-newer", "yesterday"], "not a day"),
        (["solve", "--framework", "deepspeed" + "x" * 1000], "--framework"),
        (["solve", "--framework", "$(reboot)"], "neither a name nor"),
        (["check", "deepspeed"], "not NAME==VERSION"),
        (["check", "torch==two"], "is not a version"),
        (["build"], "Cannot build an environment"),
        (["lock"], "Cannot lock a cell"),
        (["explain"], "no cell and no rule is named"),
        (["explain", "--from", "ds0.14.0-torch2.3.1-cu121-py311"], "--to"),
        (["explain", "torch==2.9"], "is a component"),
        (["solve", "--torch", ""], "the version is empty"),
        (["solve", "--limit", "3"], "--limit without --all"),
        (["check", "torch==2.5", "torch==2.6"], "2.5 and 2.6 contradict"),
        (["check", "torch=2.6"], "did you mean torch==2.6?"),
        (["check", "torch", "2.6"], "did you mean torch==2.6?"),
        (["explain", "ds0.14.0-torch2.3.1-cu121-py311", "--to", "ds0.15.0"], "such as deepspeed, 'torch>=2.9'"),
        (["check", "gpu==voodoo"], "h100"),
        (["check", "torch==2.6", "--json", "--format", "sarif"], "Cannot combine"),
        (["lock", "--framework", "deepspeed", "--quiet", "--verbose"], "Cannot combine"),
        (["smoke", "--nodes"], "Give it a value: --nodes a,b,c|N."),
        (["ci", "check", "--since"], "Give it a value: --since "),
        (["smoke", "--nodes", "a,b", "--import", "trainer"], "Cannot use --import with --nodes"),
        (["matrix", "show", "nonsense"], "not a cell id"),
        (["matrix", "list", "--framework", "tensorflow"], "--framework 'tensorflow'"),
    ],
)
def test_bad_usage_is_one_message_and_exit_code_2(argv, says, capsys):
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == "" or json.loads(captured.out)["status"] == "error"


@pytest.mark.parametrize("argv", [["matrix"], ["ci"]])
def test_help_is_what_a_verb_that_is_missing_gets(argv, capsys):
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("Usage: envsmith")
    assert "error" not in err.split("\n", maxsplit=1)[0]


def test_the_program_alone_shows_what_to_do_first(capsys):
    assert run([]) == 0
    said = capsys.readouterr().out
    assert all(f"envsmith {verb} " in said for verb in ("build", "doctor", "check"))


@pytest.mark.parametrize(
    ("typed", "meant"), [(["help"], ["--help"]), (["help", "ci", "check"], ["ci", "check", "--help"])]
)
def test_help_is_a_word_too(typed, meant, capsys):
    assert run(typed) == 0
    said = capsys.readouterr().out
    assert run(meant) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("typed", ["version", "-V"])
def test_the_version_has_the_spellings_that_people_try(typed, capsys):
    assert run([typed]) == 0
    assert "matrix of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("install", "Try envsmith build."),
        ("slove", "Try envsmith solve."),
        ("instal", "Try envsmith build."),
        ("shell", "Use one of"),
    ],
)
def test_a_verb_is_suggested_only_where_it_is_near_or_a_habit(typed, hint, capsys):
    assert run([typed]) == 2
    assert hint in capsys.readouterr().err


def _commands(command=app.cli, path=()):
    """Yield every command, those of groups too, with the words that call it."""
    context = click.Context(app.cli)
    for name in command.list_commands(context):
        each = command.get_command(context, name)
        if isinstance(each, click.Group):
            yield from _commands(each, (*path, name))
        else:
            yield (*path, name), each


@pytest.mark.parametrize(
    "argv",
    [
        *([*path, "--no-such-option"] for path, _ in _commands()),
        ["solve", "--framework", "nope"],
        ["lock"],
    ],
    ids=" ".join,
)
def test_a_failure_is_one_object_too(argv, capsys):
    code = run([*argv, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["exit_code"], code) == ("error", code, 2)
    assert answer["message"]
    assert answer["hint"]


def test_an_answer_that_is_a_document_is_the_object_itself(capsys):
    assert run(["ci", "schema", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "envsmith.yaml"


@pytest.mark.parametrize(
    ("plain", "spelt"),
    [
        (["deepspeed", "trl"], ["--framework", "deepspeed", "--with", "trl"]),
        (["hf", "--torch-backend", "cu128"], ["--stack", "hf", "--cuda", "12.8"]),
        (["hf-deepspeed", "--torch", "2.13"], ["--stack", "hf-deepspeed", "--torch", "2.13"]),
    ],
)
def test_plain_names_are_what_the_flags_name(plain, spelt, capsys):
    assert run(["solve", *plain, "--json"]) == 0
    said = capsys.readouterr().out
    assert run(["solve", *spelt, "--json"]) == 0
    assert capsys.readouterr().out == said


def test_check_and_doctor_take_a_file_as_an_argument(tmp_path, capsys):
    (tmp_path / "requirements.txt").write_text("torch==2.9.1+cu128\n")
    for verb in ("check", "doctor"):
        assert run([verb, str(tmp_path / "requirements.txt"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["status"] in {"ok", "unknown"}


def test_every_command_has_the_common_flags():
    lacking = [
        (path, flag)
        for path, command in _commands()
        for flag in ("--json", "--quiet", "--verbose")
        if not any(flag in parameter.opts for parameter in command.params)
    ]
    assert lacking == []


def test_the_version_names_the_day_of_the_knowledge(capsys):
    assert run(["--version"]) == 0
    assert re.fullmatch(r"envsmith \d+\.\d+\.\d+ \(matrix of \d{4}-\d\d-\d\d\)\n", capsys.readouterr().out)


def test_a_variable_named_like_the_version_flag_is_not_the_flag(monkeypatch, capsys):
    monkeypatch.setenv("ENVSMITH_VERSION", "1.2.3")
    assert run(["check", "torch==2.13.0"]) == 0
    assert "matrix of" not in capsys.readouterr().out


def test_flags_can_be_given_by_variables(monkeypatch, capsys):
    monkeypatch.setenv("ENVSMITH_SOLVE_FRAMEWORK", "colossalai")
    assert run(["solve", "--json"]) == 0
    assert "colossalai" in json.loads(capsys.readouterr().out)["cell"]["components"]


@pytest.mark.parametrize(("variable", "coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_colour_is_what_the_variables_ask_for(variable, coloured, monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda _stream, color: color is False, raising=True)
    run(["check", "deepspeed==0.14.0", "torch==2.6.0"])
    run(["slove"])
    said = capsys.readouterr()
    assert ("\x1b[" in said.out, "\x1b[" in said.err) == (coloured, coloured)


def test_a_reader_who_goes_away_is_neither_yes_nor_no():
    command = [sys.executable, "-m", "envsmith", "solve", "--framework", "deepspeed", "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        process.wait()
    assert (process.returncode, said) == (app.CUT, "")
    assert app.CUT in EXIT_CODES


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell, capsys):
    assert run(["completion", shell]) == 0
    assert "_ENVSMITH_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("envsmith so", "solve"),
        ("envsmith matrix li", "list"),
        ("envsmith solve --framework meg", "megatron-core"),
        ("envsmith lock --with flash", "flash-attn"),
        ("envsmith build --gpu h10", "h100"),
        ("envsmith build --offl", "--offline"),
    ],
)
def test_verbs_flags_and_names_are_completed(words, offered, monkeypatch, capsys):
    monkeypatch.setenv("_ENVSMITH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run([]) == 0
    assert f"plain,{offered}" in capsys.readouterr().out.splitlines()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_resolved(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(locking, "lock_cell", lambda *_a, **_k: pytest.fail("resolved first"))
    (tmp_path / "file").touch()
    assert run(["lock", "--framework", "deepspeed", "--no-conda", "-o", str(tmp_path / "file" / "below"), "-q"]) == 10
    assert "Cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "hint"),
    [("--drivr", "Use --driver, if that is what you mean."), ("--nothing", "Run envsmith solve --help")],
)
def test_another_option_is_named_only_where_it_is_near(option, hint, capsys):
    assert run(["solve", option]) == 2
    said = capsys.readouterr().err
    assert f"envsmith solve has no option {option}." in said
    assert f"hint: {hint}" in said


@pytest.mark.parametrize("verb", ["export", "site"])
def test_matrix_tells_of_a_folder_that_cannot_be_written_before_it_judges(verb, monkeypatch, capsys, tmp_path):
    for judging in ("envsmith.cli.matrix.document", "envsmith.matrix.site.page.read_page"):
        monkeypatch.setattr(judging, lambda *_a, **_k: pytest.fail("judged first"))
    (tmp_path / "file").touch()
    assert run(["matrix", verb, "-o", str(tmp_path / "file" / "below")]) == 10
    assert "Cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["export", "site"])
def test_matrix_refuses_a_folder_of_somebody_else_before_it_judges(verb, monkeypatch, capsys, tmp_path):
    for judging in ("envsmith.cli.matrix.document", "envsmith.matrix.site.page.read_page"):
        monkeypatch.setattr(judging, lambda *_a, **_k: pytest.fail("judged first"))
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "mine.json").write_text("{}")
    assert run(["matrix", verb, "-o", str(tmp_path)]) == 2
    assert "Cannot replace" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["cells", "mine.json"]


def test_every_bad_pair_is_named_at_once(capsys):
    assert run(["check", "numpy==one", "torch==two", "deepspeed"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("one", "two", "deepspeed"))


def test_solve_json_is_one_object_on_stdout(capsys):
    assert run(["solve", "--framework", "deepspeed", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "solved"
    assert {"id", "components"} <= answer["cell"].keys()
    assert {"deepspeed", "torch", "python", "cuda", "nccl"} <= answer["cell"]["components"].keys()


def test_solve_all_streams_one_object_a_line(capsys):
    assert run(["solve", "--framework", "colossalai", "--all", "--limit", "3", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 3


def test_a_refusal_names_rule_evidence_and_a_solved_repair(capsys):
    assert run(["solve", "--framework", "colossalai", "--torch", ">=2.9", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "unsatisfiable"
    rules = [member for member in answer["conflict"] if not member["rule"].startswith("request:")]
    assert rules
    assert all(member["evidence"] for member in rules)
    assert answer["repairs"]
    assert all(repair["cell"]["id"] for repair in answer["repairs"])


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (1, "measured 2026-11-20: a0"),
        (3, "measured 2026-11-20: a0 (and 2 more: envsmith explain a-rule)"),
        (4, "measured 2026-11-20: a0 (and more: envsmith explain a-rule)"),
    ],
)
def test_a_refusal_shows_one_piece_of_evidence_and_says_where_the_others_are(count, line):
    evidence = tuple(Evidence(kind=EvidenceKind.MEASURED, source=f"a{n}", date="2026-11-20") for n in range(count))
    refusal = Refusal(conflict=(Conflict(rule="a-rule", components={}, message="no", evidence=evidence),))
    assert [click.unstyle(text).strip() for text in refusal_lines(refusal)][2:] == [line]


def test_build_prints_the_refusal_too(capsys):
    assert run(["build", "--framework", "colossalai", "--torch", ">=2.9", "--engine", "venv", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "unsatisfiable"


def test_aliases_of_frameworks_are_understood(capsys):
    assert run(["solve", "--framework", "Megatron-LM", "--json"]) == 0
    assert "megatron-core" in json.loads(capsys.readouterr().out)["cell"]["components"]


@pytest.mark.parametrize(
    ("form", "word"), [("text", "status: bad"), ("sarif", '"2.1.0"'), ("github", "::error title=envsmith")]
)
def test_findings_come_in_every_format(form, word, capsys):
    assert run(["check", "deepspeed==0.14.0", "torch==2.6.0", "--format", form]) == 1
    assert word in capsys.readouterr().out


def test_ok_and_bad_sets_have_their_exit_codes(capsys):
    assert run(["check", "deepspeed==0.19.8", "torch==2.13.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] in {"ok", "unknown"}
    assert run(["check", "torch==2.9.1+cu128", "driver==470.82.01"]) == 1


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "/some/file"), 10, "the disk is full"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/some/file"),
            10,
            "Cannot write /some/file: permission is denied.",
        ),
        (NetworkError("the index cannot be reached", hint="check the network"), 5, "hint: check the network"),
        (RuntimeError("surprise"), 70, "envsmith has a bug"),
    ],
)
def test_failures_have_their_exit_code_and_no_traceback(raised, code, says, capsys, monkeypatch, tmp_path):
    def fail(*_args, **_kwargs):
        raise raised

    monkeypatch.setattr(arrow, "build", fail)
    assert run(["build", "--framework", "deepspeed", "--output", str(tmp_path)]) == code
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_control_characters_of_a_message_do_not_reach_the_terminal(capsys, monkeypatch):
    def fail(*_args, **_kwargs):
        raise NetworkError("the index said \x1b[2J\x07 hello")

    monkeypatch.setattr(arrow, "build", fail)
    run(["build", "--framework", "deepspeed"])
    assert "\x1b[2J" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["solve", "lock", "build"])
def test_a_request_without_a_name_is_refused_by_each_verb_alike(verb, capsys):
    assert run([verb]) == 2

    error = capsys.readouterr().err
    assert "nothing is named" in error
    assert f"envsmith {verb} deepspeed" in error


def test_what_a_machine_has_is_enough_to_choose_a_pytorch_for_it(capsys):
    assert run(["solve", "--gpu", "a100", "--driver", "535.183.01"]) == 0
    assert capsys.readouterr().out.startswith("cell torch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hlep"], "Try envsmith help."),
        (["completion"], "Choose from: bash, zsh, fish."),
        (["explain", "2.4"], "Give an error message to envsmith doctor."),
        (["check", "FOLDER"], "it is a folder."),
        (["check", "ENV"], "Run envsmith doctor --python ENV."),
        (["solve", "req.txt"], "Use -r req.txt instead."),
        (["lock", "."], "Use --project . instead."),
        (["build", "./FOLDER"], "Use --project ./FOLDER instead."),
        (["wheel", "flash-attn==2.5.0"], "the catalogue has only 2.8.3.post1, 2.8.3, "),
        (["publish", "--to", "registry/image", "--key", "key.pem"], "none below envsmith-build has a record."),
        (["verify", "image.tar"], "there is no such file."),
        (["verify", "FOLDER"], "it is a folder."),
        (["smoke", "ENV", "--python", "ENV"], "they name one thing."),
    ],
)
def test_what_newcomers_type_is_answered_with_what_to_type(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "ENV" / "bin").mkdir(parents=True)
    (tmp_path / "ENV" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "req.txt").write_text("torch\n")
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_a_file_is_judged_whatever_its_name_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch==2.4.1.txt").write_text("torch==2.4.1\ndeepspeed==0.14.2\n")
    assert run(["check", "torch==2.4.1.txt"]) == 1
    assert "deepspeed-elastic-socket" in capsys.readouterr().out


def test_doctor_judges_an_environment_that_is_named_among_the_files(tmp_path, capsys):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "lib.log").write_text("ImportError: cannot import name '_get_socket_with_port'\n")
    run(["doctor", str(tmp_path)])
    assert f"environment of {tmp_path}/bin/python" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "example"),
    [(["solve", "--gpu"], "h100"), (["matrix", "site", "-o"], "DIRECTORY"), (["build", "--tier"], "bandwidth")],
)
def test_an_option_without_its_value_is_answered_with_what_it_takes(words, example, capsys):
    assert run(words) == 2

    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith("hint: Give it a value: ")
    assert example in hint
