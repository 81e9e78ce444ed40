"""What BuildKit prints becomes events and errors; which client is asked."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from docker.errors import DockerException

from envsmith.base import programs
from envsmith.builder.engines import buildkit
from envsmith.builder.engines.shelf import engine_errors
from envsmith.errors import (
    BuildError,
    ContentError,
    EngineError,
    EnvsmithError,
    InterruptedRunError,
    NetworkError,
    StorageError,
)

# Words of a real run of docker 20.10, shortened.
RUN = """\
#1 [internal] load build definition from Dockerfile
#1 sha256:9725f81d15264245de3fad47dcb97e4ecaf13a5de072c9a4f934d31bb1c1e9a1
#1 DONE 0.0s

#3 [stage-0 1/5] FROM docker.io/envsmith/base:bookworm-148253738da6
#3 CACHED

#4 [stage-0 2/5] RUN --mount=type=bind,from=uv,source=/uv,target=/dev/cell/uv sh /dev/cell/steps/cell.sh environment /usr/bin/python3
#4 sha256:afcbfc316503746c0ddd74cf381b66ce2b8cc593a33b71ad190eeb6f6c057edd
#4 CACHED

#7 [stage-0 3/5] RUN --mount=type=bind,from=uv,source=/uv,target=/dev/cell/uv --mount=type=bind,source=requirements-torch.txt,target=/x
#7 sha256:55ee9cee9f30d760ec36271d5fb40903cf7d0d3da8a923925c30819e80c21dc2
#7 0.114 Using Python 3.11.2 environment at: /opt/cell
#7 0.182  + packaging==25.0
#7 DONE 0.3s
"""
FAILED = """\
#8 [stage-0 4/5] RUN --mount=type=bind,source=requirements-framework.txt,target=/x uv pip install
#8 0.10 first line
#8 0.20 {line}
#8 ERROR: executor failed running [/bin/sh -c uv pip install]: exit code: 1
------
 > [stage-0 4/5] RUN --mount …:
------
executor failed running [/bin/sh -c uv pip install]: exit code: 1
"""


def read(text, progress):
    transcript = buildkit.Transcript(progress)
    for line in text.splitlines():
        transcript.feed(line)
    return transcript


def test_steps_of_ours_are_told_and_the_builder_s_own_are_not(events):
    read(RUN, events)
    assert events.kinds("user and environment") == ["start", "cached"]
    assert events.kinds("torch layer") == ["start", "line", "line", "done"]
    assert ("line", "torch layer", " + packaging==25.0") in events.seen
    assert {step for _, step, _ in events.seen} == {"user and environment", "torch layer"}


def test_checksum_lines_are_not_output(events):
    read(RUN, events)
    assert not [text for _, _, text in events.seen if "sha256" in text]


@pytest.mark.parametrize(
    ("line", "kind", "hint"),
    [
        ("error: command 'gcc' failed", BuildError, "next run starts"),
        ("OSError: [Errno 28] No space left on device", StorageError, "Free space"),
        ("  x Hash mismatch for `torch==2.13.0`", ContentError, "Lock"),
        ("E: Version '4:12.2.0-3' for 'g++' was not found", BuildError, "mirror has newer packages"),
        ("  ╰─▶ invalid peer certificate: UnknownIssuer", NetworkError, "SSL_CERT_FILE"),
        ("  ├─▶ error sending request for url (https://index.invalid/simple/)", NetworkError, "network"),
    ],
)
def test_a_failed_step_says_its_lines_and_what_to_do(line, kind, hint, events):
    error = read(FAILED.format(line=line), events).error()
    assert type(error) is kind
    assert error.message.startswith("Cannot finish framework layer: ")
    assert error.details == ("first line", line)
    assert hint in (error.hint or "")
    assert events.kinds("framework layer")[-1] == "failed"


def test_only_the_last_lines_of_a_long_step_are_shown(events):
    text = "#8 [4/5] RUN requirements-framework\n" + "".join(f"#8 0.1 line {n}\n" for n in range(500)) + "#8 ERROR: x\n"
    details = read(text, events).error().details
    assert len(details) == 30
    assert details[-1] == "line 499"


def test_the_error_of_a_compiler_is_shown_however_long_the_traceback_below_it_is(events):
    cause = "CMake Error: CMake was unable to find a build program."
    above = ["-- Looking", *[cause] * 9]
    output = "".join(f"#8 0.1 {line}\n" for line in [*above, *(f"File {n}" for n in range(400))])

    error = read(f"#8 [4/5] RUN requirements-framework\n{output}#8 ERROR: x\n", events).error()

    assert error.message == (
        "Cannot finish framework layer: its command failed: CMake Error: CMake was unable to find a build program."
    )
    assert list(error.details) == [cause] * 5 + [f"File {n}" for n in range(375, 400)]


def test_a_failure_before_any_step_shows_the_end_of_the_output(events):
    error = read("unknown flag: --secret\nSee 'docker build --help'.\n", events).error()
    assert isinstance(error, EngineError)
    assert "unknown flag: --secret" in error.details


def test_arbitrary_output_never_breaks_the_reader(events):
    for line in ("#", "# ", "#9", "#9 ", "#abc", "#1 DONE", "\x1b[31m#2", "#3 ERROR", "#3 ERROR"):
        read(line, events)
    assert isinstance(read("", events).error(), EnvsmithError)


def client(folder, body):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "docker"
    path.write_text(f"#!{sys.executable}\nimport sys, os, time, signal\narguments = sys.argv[1:]\n{body}\n")
    path.chmod(0o755)
    return path


OLD = "print('20.10.24') if arguments[:1] == ['version'] else sys.exit(1)"
NEW_WITHOUT = "print('28.2.2') if arguments[:1] == ['version'] else sys.exit(1)"
NEW_WITH = "print('v0.20') if arguments[:1] == ['buildx'] else print('28.2.2')"


@pytest.fixture
def only(monkeypatch):
    """Keep the search to the folders of the test."""
    monkeypatch.delenv("ENVSMITH_DOCKER", raising=False)
    real = buildkit.shutil.which
    monkeypatch.setattr(
        buildkit.shutil,
        "which",
        lambda name, path: None if path in {"/usr/bin", "/usr/local/bin"} else real(name, path=path),
    )


def test_a_client_is_asked_once_and_looked_for_again_when_it_is_gone(tmp_path, only):
    asked = tmp_path / "asked"
    path = client(tmp_path, f"open({str(asked)!r}, 'a').write('x')\n{OLD}")
    assert [buildkit.find_client(str(tmp_path)) for _ in range(3)] == [str(path)] * 3
    once = asked.read_text()
    buildkit.find_client(str(tmp_path))
    assert asked.read_text() == once
    path.unlink()
    with pytest.raises(EngineError):
        buildkit.find_client(str(tmp_path))


@pytest.mark.parametrize("body", [OLD, NEW_WITH])
def test_a_client_with_buildkit_is_taken(body, tmp_path, only):
    path = client(tmp_path, body)
    assert buildkit.find_client(str(tmp_path)) == str(path)


def test_a_client_without_its_plugin_is_passed_over(tmp_path, only):
    client(tmp_path / "a", NEW_WITHOUT)
    good = client(tmp_path / "b", OLD)
    assert buildkit.find_client(f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}") == str(good)


def test_the_refusal_names_every_client_and_its_reason(tmp_path, only):
    bad = client(tmp_path, NEW_WITHOUT)
    with pytest.raises(EngineError) as caught:
        buildkit.find_client(str(tmp_path))
    assert caught.value.details == (f"{bad}: version 28.2.2 without the buildx plugin",)
    assert "buildx" in caught.value.hint
    assert "--engine podman" in caught.value.hint


def run(path, tmp_path, events, **more):
    context = tmp_path / "context"
    context.mkdir(exist_ok=True)
    lent = buildkit.Lent(**{"network": None, "secrets": {}, **more})
    return buildkit.build(str(path), context, lent, scratch=tmp_path, progress=events)


WRITE = "open(arguments[arguments.index('--iidfile') + 1], 'w').write('sha256:' + 'a' * 64)"


def test_the_image_id_comes_back_and_nothing_is_tagged(tmp_path, events):
    path = client(tmp_path, f"open({str(tmp_path / 'argv')!r}, 'w').write(repr(arguments)); {WRITE}")
    secret = tmp_path / "ca.pem"
    assert run(path, tmp_path, events, network="host", secrets={"ca": secret}) == "sha256:" + "a" * 64
    argv = eval((tmp_path / "argv").read_text())
    assert "--tag" not in argv
    assert "-t" not in argv
    assert argv[argv.index("--network") + 1] == "host"
    assert f"id=ca,src={secret}" in argv


def test_values_of_build_arguments_stand_in_no_command_line(tmp_path, events):
    path = client(
        tmp_path,
        f"open({str(tmp_path / 'seen')!r}, 'w').write(repr(arguments) + '|' + os.environ['HTTPS_PROXY']); {WRITE}",
    )
    run(path, tmp_path, events, arguments=[("HTTPS_PROXY", "http://user:secret@proxy")])
    argv, value = (tmp_path / "seen").read_text().split("|")
    assert "secret" not in argv
    assert value == "http://user:secret@proxy"


def test_a_failing_client_raises_with_its_last_words(tmp_path, events):
    path = client(
        tmp_path,
        "print('#8 [1/1] RUN requirements-torch.txt'); print('#8 0.1 boom'); print('#8 ERROR: x'); sys.exit(1)",
    )
    with pytest.raises(BuildError) as caught:
        run(path, tmp_path, events)
    assert caught.value.details == ("boom",)


def test_ctrl_c_ends_the_client_and_says_what_is_kept(tmp_path, events):
    marker = tmp_path / "ended"
    body = f"signal.signal(signal.SIGINT, lambda *_: (open({str(marker)!r}, 'w').write('x'), sys.exit(1)))\nprint('#1 started', flush=True)\ntime.sleep(60)"
    path = client(tmp_path, body)

    def press(event=None):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.7, press).start()
    started = time.monotonic()
    with pytest.raises(InterruptedRunError) as caught:
        run(path, tmp_path, events)
    assert time.monotonic() - started < 20
    assert marker.exists()
    assert "Finished steps are kept" in caught.value.hint
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize("ignored", ["", "SIGINT", "SIGINT SIGTERM"])
def test_a_client_that_does_not_answer_ctrl_c_is_ended_all_the_same(tmp_path, events, monkeypatch, ignored):
    """An engine that writes an image's layers answers nobody for half a minute, and its client waits for it."""
    monkeypatch.setattr(programs, "_PATIENCE", 0.3)
    monkeypatch.setattr(buildkit, "_PATIENCE", 0.3)
    deaf = "".join(f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in ignored.split())
    path = client(tmp_path, f"{deaf}print('#1 started', flush=True)\ntime.sleep(60)")
    ended = []

    def building():
        with pytest.raises(BuildError):
            run(path, tmp_path, events)
        ended.append(True)

    thread = threading.Thread(target=building)
    thread.start()
    while not programs._RUNNING:
        time.sleep(0.01)
    time.sleep(0.5)  # the client has said what it ignores
    started = time.monotonic()
    programs.end_all()
    thread.join(20)
    assert ended == [True]
    assert time.monotonic() - started < 10
    assert not programs._RUNNING


def test_a_client_that_cannot_be_started_is_an_engine_error(tmp_path, events):
    with pytest.raises(EngineError, match="Cannot start"):
        run(tmp_path / "missing", tmp_path, events)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", StorageError, "Free space"),
        ("OSError: [Errno 122] Disk quota exceeded", StorageError, "Free space"),
        ("ERROR: error reading from server: EOF", EngineError, "Start the engine again"),
        ("ERROR: rpc error: code = Unavailable desc = closing transport", EngineError, "Start the engine again"),
        ("Cannot connect to the Docker daemon at unix:///x. Is it running?", EngineError, "Start the engine again"),
        ("dial unix /var/run/docker.sock: connect: connection refused", EngineError, "Start the engine again"),
        ("error: compiler says no", BuildError, "the next run starts at this one"),
    ],
)
def test_disk_that_fills_and_engine_that_ends_during_a_build_are_told_from_a_step_that_failed(line, kind, words):
    error = buildkit.judge("torch layer", ["#9 12.1 Downloading", line])
    assert type(error) is kind
    assert words in (error.hint or "")


def test_engine_whose_disk_is_full_is_a_matter_of_storage():
    with pytest.raises(StorageError) as caught, engine_errors("the image cannot be saved"):
        raise DockerException("write /var/lib/docker/tmp: no space left on device")
    assert "Free space" in (caught.value.hint or "")


def test_a_runtime_that_cannot_start_a_container_is_not_taken_for_an_engine_that_ended():
    said = "OCI runtime create failed: runc create failed: namespace {time} does not exist"

    with pytest.raises(EngineError) as caught, engine_errors("run a container of IMAGE"):
        raise DockerException(said)

    assert "Update the runtime" in (caught.value.hint or "")
