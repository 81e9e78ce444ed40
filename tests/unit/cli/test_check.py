"""``envsmith check --from`` with the files of a project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from envsmith.cli.check import check
from envsmith.errors import UsageError

LOCKS = Path(__file__).parents[2] / "cases" / "locks"


def _check(*arguments):
    return CliRunner().invoke(check, [str(a) for a in arguments], standalone_mode=False)


def _judged(*arguments):
    return json.loads(_check(*arguments, "--json").stdout)


def test_ranges_of_a_pyproject_that_no_releases_meet_are_bad(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "x"\ndependencies = ["deepspeed>=0.12,<0.14.4", "torch>=2.4"]\n')

    judged = _judged("--from", path)

    assert judged["status"] == "bad"
    assert judged["findings"][0]["where"] == f"{path}:3"


def test_pins_of_a_requirements_file_are_versions(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("# torch==1.0\ndeepspeed==0.14.2\ntorch==2.4.1\nwandb\n")

    judged = _judged("--from", path)

    assert judged["findings"][0]["components"] == {"deepspeed": "0.14.2", "torch": "2.4.1"}


def test_a_lock_and_a_project_are_judged_together(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "x"\ndependencies = ["torch<2.4"]\n')

    assert _judged("--from", path)["status"] == "ok"
    # The lock has triton 3.0.0, which comes with torch 2.4.
    unknown = _judged("--from", path, "--from", LOCKS / "uv.lock")["unknown"]
    assert any(
        sentence.startswith("no known releases meet torch <2.4 and triton ==3.0.0 together") for sentence in unknown
    )


def test_lines_that_cannot_be_judged_are_named(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch>=2.4\npeft @ git+https://example.org/peft\n")

    result = _check("--from", path)

    assert f"not judged: {path}:2: peft comes from git+https://example.org/peft" in result.stderr
    assert result.return_value == 0


def test_pins_of_which_nothing_is_known_are_named(tmp_path):
    path = tmp_path / "pins.txt"
    path.write_text("torch==2.1.2\ntorch-scatter==2.1.2\ntorch-sparse==0.6.18\n")

    result = _check("--from", path)

    assert "torch-scatter 2.1.2, torch-sparse 0.6.18 fit: only the package index knows (--index)" in result.stdout


def test_nothing_is_said_to_be_fine_of_pins_that_are_not_known(tmp_path):
    path = tmp_path / "pins.txt"
    path.write_text("foobarbaz==1.2.3\n")

    result = _check("--from", path, "--json")

    assert json.loads(result.stdout)["status"] == "unknown"


def test_every_kind_of_line_is_judged_or_named_with_its_place(tmp_path):
    (tmp_path / "base.txt").write_text("torch==2.4.1 --hash=sha256:" + "a" * 64 + "\n-r requirements.txt\n")
    (tmp_path / "bounds.txt").write_text("numpy<2\n")
    path = tmp_path / "requirements.txt"
    path.write_text(
        "-r base.txt\n-c bounds.txt\ndeepspeed==0.14.2 ; python_version >= '3.8'\npeft==${NO_SUCH_VARIABLE}\n"
        "-e git+https://example.org/own#egg=own\n--odd option\n" + "wandb\n" * 5000
    )

    result = _check("--from", path)

    assert result.return_value == 1
    assert "deepspeed-elastic-socket" in result.stdout
    places = (f"{tmp_path}/base.txt:2", f"{path}:4", f"{path}:5", f"{path}:6")
    assert [any(f"not judged: {place}: " in line for line in result.stderr.splitlines()) for place in places] == [
        True
    ] * 4


def test_thousands_of_lines_that_cannot_be_judged_are_counted(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch\n" + "".join(f"p{n} @ https://example.org/{n}.zip\n" for n in range(5000)))

    lines = _check("--from", path).stderr.splitlines()

    assert len(lines) < 30
    assert lines[-1] == "not judged: 4980 more lines"


@pytest.mark.parametrize("content", [b"\x00\xff\xfe\n", b"torch==${NO_SUCH_VARIABLE}\n"])
def test_a_file_of_which_nothing_can_be_judged_is_not_ok(tmp_path, content):
    path = tmp_path / "requirements.txt"
    path.write_bytes(content)

    error = _check("--from", path).exception

    assert isinstance(error, UsageError)
    assert error.message == f"Cannot check {path}: none of its requirements can be judged."


@pytest.mark.parametrize("words", [("absent.txt",), ("--from", "absent.txt")])
def test_a_file_that_is_not_there_is_named_and_not_taken_for_a_version(words):
    error = _check(*words).exception

    assert isinstance(error, UsageError)
    assert error.message.startswith("Cannot read absent.txt")
    assert error.hint


def test_a_project_file_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[project")

    assert isinstance(_check("--from", path).exception, UsageError)
    assert isinstance(_check("--from", tmp_path / "requirements.txt").exception, UsageError)


def test_a_misspelt_name_that_the_index_lacks_is_refused_with_the_nearest_name(server, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")

    error = _check("depspeed==0.14.2", "torch==2.4.1").exception

    assert isinstance(error, UsageError)
    assert "depspeed" in error.message
    assert "deepspeed" in error.hint
    assert [request.path for request in server.seen] == ["/simple/depspeed/"]


def test_a_name_like_that_of_a_component_is_unknown_where_the_index_has_it(server, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    server.routes["/simple/depspeed/"] = lambda handler: handler.reply(200, b"<html></html>", Content_Type="text/html")

    judged = _judged("depspeed==0.14.2", "torch==2.4.1")

    assert judged["status"] == "unknown"
    assert "did you mean deepspeed?" in judged["unknown"][0]
    assert judged["unknown"][1:] == ["what depspeed 0.14.2 asks for: the package index has no such release"]


@pytest.mark.parametrize(
    "settings",
    [{"UV_OFFLINE": "1"}, {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}],
    ids=["offline", "nobody there"],
)
def test_a_name_about_which_the_index_could_not_be_asked_stays_unknown_and_says_why(settings, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    judged = _judged("depspeed==0.14.2", "torch==2.4.1")

    assert judged["status"] == "unknown"
    assert "deepspeed" in judged["unknown"][0]
    assert "whether there is a package depspeed" in judged["unknown"][1]


def test_a_release_that_envsmith_does_not_know_is_asked_for_unless_offline(server, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")

    offline = _judged("our-own-thing==1.0", "torch==2.4.1", "--offline")
    assert server.seen == []
    asked = _judged("our-own-thing==1.0", "torch==2.4.1")

    assert [request.path for request in server.seen] == ["/simple/our-own-thing/"]
    assert asked["unknown"] == [
        *offline["unknown"],
        "what our-own-thing 1.0 asks for: the package index has no such release",
    ]


def test_the_pins_of_a_file_are_asked_for_where_the_index_is_to_be_read(server, monkeypatch, tmp_path):
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.4.1\nour-own-thing[all]==1.0\n")

    unread = _judged("--from", path)
    assert server.seen == []
    read = _judged("--from", path, "--index")

    assert "/simple/our-own-thing/" in {request.path for request in server.seen}
    assert unread["unknown"][-1].endswith("our-own-thing 1.0 fit: only the package index knows (--index)")
    assert "what our-own-thing 1.0 asks for: the package index has no such release" in read["unknown"]


def test_a_list_of_requirements_is_taken_by_the_flag_that_other_verbs_have(tmp_path):
    (tmp_path / "r.txt").write_text("torch==2.4.1\ndeepspeed==0.14.2\n")

    result = CliRunner().invoke(check, ["-r", str(tmp_path / "r.txt")], standalone_mode=False)

    assert result.return_value == 1
    assert "deepspeed-elastic-socket" in result.stdout
