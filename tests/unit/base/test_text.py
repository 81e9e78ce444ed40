"""What a record or a snapshot may tell of the machine that wrote it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.base.text import (
    clean,
    counted,
    escaped_json,
    names_here,
    places_here,
    printable,
    private_parts,
    redact,
    redact_paths,
    redact_values,
    table_cell,
    without_secrets,
)
from envsmith.knowledge.graph.location import find_matrix
from envsmith.model.record import CaseOutcome, Failure, Record, Rung, Verdict, put_record, record_text

PLACES = {"/root": "~", "/home/me": "~", "/tmp": "<tmp>", "/data/run": "<state>", "/data/run/cells/x": "."}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('File "/root/.pyenv/versions/3.11.7/lib/python3.11/ast.py", line 3', 'File "<python>/lib/python3.11/ast.py", line 3'),
        ("/tmp/s/cache/.tmpX/lib/python3.11/site-packages/setuptools/a.py", "<env>/lib/python3.11/site-packages/setuptools/a.py"),
        ("at /data/run/cells/x/venv/lib/python3.12/site-packages/a.py:3", "at ./venv/lib/python3.12/site-packages/a.py:3"),
        ("no file /data/run/log.txt, /data/run: or '/data/run'", "no file <state>/log.txt, <state>: or '<state>'"),
        ("/data/running and /x/data/run and https://x.y/data/run", "/data/running and /x/data/run and https://x.y/data/run"),
        ("/home/me/x and /home/you/x and /home/meg/x", "~/x and /home/USER/x and /home/USER/x"),
        ("/tmp/pip-1/x.py in /tmp", "<tmp>/pip-1/x.py in <tmp>"),
        ("/usr/lib/python3.11/ast.py, /usr/local/cuda/lib64", "/usr/lib/python3.11/ast.py, /usr/local/cuda/lib64"),
        ("./venv/lib/python3.12/site-packages/a.py", "./venv/lib/python3.12/site-packages/a.py"),
        ("12 of 99; 3/4; a/b", "12 of 99; 3/4; a/b"),
    ],
)  # fmt: skip
def test_a_folder_of_this_machine_is_called_by_what_it_is(text: str, told: str) -> None:
    assert redact_paths(text, PLACES) == told
    assert redact_paths(told, PLACES) == told


@given(st.text(alphabet="/.~abc <>\"'\n", max_size=60))
def test_what_was_redacted_stays_so(text: str) -> None:
    once = redact_paths(text, PLACES)
    assert redact_paths(once, PLACES) == once


def test_secrets_and_addresses_go_and_digests_stay() -> None:
    digest = "sha256:" + "ab" * 32
    row = {"lock": digest, "notes": ["https://me:pw@host/simple", "mail a@b.example", "token hf_" + "a1" * 8], "n": 3}
    assert redact_values(row, {}, {}) == {
        "lock": digest,
        "notes": ["https://host/simple", "mail <address>", "token <removed>"],
        "n": 3,
    }


def test_names_of_user_and_host_go_and_words_that_say_nothing_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-17.lab.example")
    monkeypatch.setenv("USER", "alice")
    text = "alice: connect to [gpu-17]:29400, gpu-17.lab.example, gpu-170, malice"
    assert redact_values(text, {}, names_here(())) == "<user>: connect to [<host>]:29400, <host>, gpu-170, malice"


@pytest.mark.parametrize("name", ["root", "Ubuntu", "worker", "torch"])
def test_a_common_name_or_one_of_the_text_s_own_is_no_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)
    for variable in ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER"):
        monkeypatch.setenv(variable, name)
    assert names_here({"torch"}) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read /data/alice/train.py", "read <folder>/train.py"),
        ("in /mnt/x-1/y/z/run.sh:7 and /srv/a/b", "in <folder>/run.sh:7 and <folder>/b"),
        ("/usr/lib/x.so, /proc/1/fd, /opt/nvidia/nsys, 1/2, and/or, https://h.example/a/b/c", None),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef fell", "GPU-<removed> fell"),
        ("no answer from 10.1.2.3:29500 or 10.1.2.4<1234>", "no answer from <address>:29500 or <address><1234>"),
        ("cudnn 9.20.0.48, 127.0.0.1:29500", None),
    ],
)
def test_what_may_be_published_has_no_folder_address_or_number_of_a_gpu(text: str, shown: str | None) -> None:
    assert redact_values(text, {}, {}) == (shown or text)
    assert list(private_parts({"a": [text]})) == ([] if shown is None else ["a[0]"])


def test_places_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/srv/people/me")
    monkeypatch.setenv("UV_CACHE_DIR", "/big/uv")
    monkeypatch.setenv("PIP_CACHE_DIR", "")
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    found = places_here(state=link, cell=Path("relative"))
    assert found["/srv/people/me"] == "~"
    assert found["/big/uv"] == "<cache>"
    assert found[str(link)] == found[str(tmp_path / "real")] == "<state>"
    assert found[str(Path("relative").resolve())] == "."
    assert all(folder.startswith("/") and folder != "/" for folder in found)
    monkeypatch.setenv("HOME", "/")
    assert "/" not in places_here()


def _record(text: str) -> Record:
    return Record(
        cell="ds0.16.4-torch2.6.0-cu124-py312", components={"torch": "2.6.0"}, lock="sha256:" + "0" * 64, engine="venv",
        environment="", rungs=(Rung.SOLVED,), passed=False, summary=text, started="2026-11-21T12:00:00+00:00", seconds={}, host={},
        loaded={}, backend="gloo", ranks=2, cases=(CaseOutcome(case="c", verdict=Verdict.ERROR, blame=text),), notes=(text,),
        failure=Failure(rung=Rung.LOCKED, symptom=text, log=(text,)), earlier=(Failure(rung=Rung.LOCKED, symptom=text, log=(text,)),),
    )  # fmt: skip


def test_no_field_of_a_written_record_tells_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/me")
    state = tmp_path / "state"
    text = f"in {state}/cells/1: /srv/me/x: /tmp/y: /home/someone/z"
    written = put_record(state / "records", _record(text)).read_text()
    assert str(tmp_path) not in written
    assert written.count("in <state>/cells/1: ~/x: <tmp>/y: /home/USER/z") == 7
    assert json.loads(record_text(_record(text), cell=state))["summary"].startswith("in ./cells/1")


def test_no_published_record_tells_a_path() -> None:
    private = ("/root/", "/tmp/", "/home/", "/var/tmp/", "/Users/")
    told = [
        f"{path.name}: {place}"
        for path in sorted((find_matrix() / "records").glob("*.json"))
        for place in private
        if place in path.read_text(encoding="utf-8")
    ]
    assert not told


def test_a_log_cannot_drive_the_terminal() -> None:
    assert clean("\x1b[31mred\x1b[0m\x07 and\ttab\nline") == "red and\ttab\nline"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x9b31mb\x9d0;title\x9cc", "abc"),
        ("\x1b]0;title\x07x\x1b]8;;https://evil.example\x1b\\link", "xlink"),
        ("\x1b(0x\x1bcy\x1bP1;2q\x1b\\z\x85", "xyz"),
        ("a\u202etxt.exe\u2066b\u200b\ufeff\u2028", "atxt.exeb"),
        ("half \ud83d of a character", "half  of a character"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("[\x1b[2K\x1b[1A] unfinished \x1b[", "[] unfinished ["),
        ("ein Käfig: 中文 🙂", "ein Käfig: 中文 🙂"),
    ],
)
def test_nothing_of_a_text_drives_a_terminal_or_turns_its_reading(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@given(st.text(max_size=80))
def test_what_was_cleaned_stays_so_and_can_be_written(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert not set("\x1b\x9b\x07\r\u202e") & set(once)
    once.encode()


def test_the_colours_of_our_own_words_reach_the_terminal_and_no_other_sequence() -> None:
    assert printable("\x1b[31m\x1b[1mbad\x1b[0m\x1b[2J\x1b[8mhidden\x9b1A") == "\x1b[31m\x1b[1mbad\x1b[0mhidden"


@pytest.mark.parametrize(
    "line", ["::error file=x::pwned", "  ::add-mask::x", "key ##[error]pwned", "a\n\t::warning::x"]
)
def test_no_line_is_a_command_to_the_runner_of_a_ci(line: str) -> None:
    printed = printable(line)
    assert "##[" not in printed
    assert not any(row.lstrip().startswith("::") for row in printed.splitlines())


def test_a_text_that_only_looks_like_a_command_stays() -> None:
    assert printable("::1 localhost\nstd::vector ::x") == "::1 localhost\nstd::vector ::x"


def test_json_says_the_same_in_escapes() -> None:
    value = {"a": "\x9b31m\u202e\x7f##[error]x\ud800", "b": "Käfig"}
    document = escaped_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(document) == value
    assert document.isprintable() or document.replace("\n", "").isprintable()
    assert "##[" not in document
    assert "Käfig" in document


@given(st.text(alphabet="a\\|`\n\r", max_size=20))
def test_a_cell_of_a_markdown_table_cannot_be_left(text: str) -> None:
    cell = table_cell(text)
    assert "\n" not in cell
    for match in re.finditer(r"(\\*)\|", cell):
        assert len(match[1]) % 2 == 1


SECRET = "Xq7Zk2Lm9Pw4Rt6Vb1Nc"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: token {SECRET}",
        f"'Authorization': 'Basic {SECRET}=='",
        f"curl -H 'X: y' Bearer {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"KEY={SECRET} make",
        f"export HF_TOKEN='{SECRET}'",
        f'WANDB_API_KEY="{SECRET}"',
        f"password = {SECRET}",
        f'{{"api_key": "{SECRET}", "n": 1}}',
        f"--password {SECRET} --verbose",
        f"--token={SECRET}",
        f"db_password: {SECRET}",
        *(f"{prefix}{SECRET}" for prefix in ("ghs_", "ghp_", "ghu_", "npm_", "ya29.", "glpat-", "pypi-", "hf_", "AIza", "xoxb-")),
        f"https://a.blob.example/c?sv=2&sig={SECRET}%2F&se=3",
        f"https://s3.example/k?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}",
        f"https://x.example/k?access_token={SECRET}#f",
        f"https://me:{SECRET}@host.example/simple",
        f"https://me:a@{SECRET}@host.example/simple",
        f"https://me:a/{SECRET}@host.example/simple",
        f"https://me:a@b/{SECRET}@c/d@host.example/simple",
        f"git+https://{SECRET}@host.example/x.git@v1.2",
        f"git+https://me:{SECRET}@host.example/x.git@v1.2",
    ],
)  # fmt: skip
def test_no_secret_stays_in_a_text_that_was_redacted(text: str) -> None:
    redacted = redact(text, users=())
    assert SECRET not in redacted
    assert redact(redacted, users=()) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "git+https://host.example/x.git@v1.2 and https://host.example:8443/simple/x",
        "tokenizers==0.19.1, keyring>=25, secretstorage==3.3.3",
        "sorted(rows, key=len) of tokenizer.num_tokens=128",
        "unexpected key: layers.0.weight",
        "the basic block of 12 lines, a bearer of 4",
        "index.corp.example:8443/simple@2",
        "NCCL_DEBUG=INFO LOCAL_RANK=0 PWD=/opt/cell",
        "huggingface_hub.hf_hub_download(resume_download=)",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text, users=()) == text


def test_a_count_has_the_noun_in_its_number() -> None:
    assert [counted(number, "line") for number in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


PLANTED = "Zq7Xw9pLk3Vb"


@pytest.mark.parametrize(
    "form",
    [
        "NGC_API_KEY: {}", "api_key: {}", "X-Api-Key: {}", "os.environ['HF_TOKEN'] = '{}'", "HF_TOKEN => {}",
        "machine h login u password {}", "curl -u u:{} https://h", "docker login -u me -p {}", '{{"auth": "{}"}}', "Cookie: a={}",
        "//h/:_authToken={}", "AccountKey={}==", "https://h/t/{}/channel", "//h/api/t/{}/channel", "conda.example.org/t/{}/main", "https://hooks.slack.com/services/T1/B2/{}",
        "https://discord.com/api/webhooks/123/{}", "sk_live_{}", "dop_v1_{}", "pass={}", "--password {}", "https://u:{}@h/x.whl", "https:/u:{}@h/r.txt",
        "x @ git+https://u:{}@h/x", "-r https://u:{}@h/r.txt", "Authorization: Bearer {}", "TORCH_HUB_TOKEN={}", "MASTER_PASSWORD={}",
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----", 'X="HF_TOKEN=\\"{}\\""',
    ],
)  # fmt: skip
def test_no_printed_text_holds_a_secret_and_json_stays_json(form: str) -> None:
    text = form.format(PLANTED)

    assert PLANTED not in printable(text)
    written = printable(json.dumps({"message": text, "hint": None}))
    assert PLANTED not in written
    assert set(json.loads(written)) == {"message", "hint"}


@pytest.mark.parametrize(
    "text",
    [
        "env:\n- name: HF_TOKEN\n  value: planted\n- name: PATH",
        "  - name: 'WANDB_API_KEY'\n    value: \"planted words\"",
        '{"name": "DB_PASSWORD", "value": "planted"}',
        "name: my.registry.secret\nvalue: planted",
    ],
)
def test_the_value_of_a_variable_in_two_fields_goes_by_its_name(text: str) -> None:
    assert "planted" not in without_secrets(text)


def test_a_harmless_variable_in_two_fields_stays() -> None:
    text = "- name: OMP_NUM_THREADS\n  value: 8\n- name: monkey\n  value: see"
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "path", ["/t/2026-runs/train.log", "/data/t/run1234/record.json", "see /home/u/t/py3.12-env/bin"]
)
def test_a_folder_that_is_called_t_is_no_token_of_a_channel(path: str) -> None:
    assert without_secrets(path) == path
