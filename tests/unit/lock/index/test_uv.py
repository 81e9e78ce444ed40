"""What uv's failures mean (recorded outputs of uv 0.13.8, hosts replaced), and in which environment it runs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from envsmith.base.files import read_toml
from envsmith.errors import (
    ContentError,
    ContradictionError,
    EngineError,
    EnvsmithError,
    InterruptedRunError,
    LockError,
    MissingProgramError,
    NetworkError,
    StorageError,
)
from envsmith.lock.index.uv import Finished, Uv, clean, explain_failure, uv_environment

UNREACHABLE = """error: Request failed after 3 retries in 9.7s
  cause: Failed to fetch: https://index.example.invalid/simple/deepspeed/
  cause: error sending request for url (https://index.example.invalid/simple/deepspeed/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known"""
REFUSED = """error: Failed to fetch: https://index.example.invalid:9/simple/deepspeed/
  cause: error sending request for url (https://index.example.invalid:9/simple/deepspeed/)
  cause: tcp connect error
  cause: Connection refused (os error 111)"""
CERTIFICATE = """error: Failed to fetch: https://index.example.invalid/simple/deepspeed/
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer"""
UNKNOWN = """error: No solution found when resolving dependencies
  cause: Because nonexistent was not found in the package registry and you require nonexistent==1, we can conclude that your requirements are unsatisfiable."""
NO_VERSION = """error: No solution found when resolving dependencies
  cause: Because there is no version of deepspeed==99.1 and you require deepspeed==99.1, we can conclude that your requirements are unsatisfiable."""
VARIANTS = """error: No solution found when resolving dependencies
  cause: Because foo==1.2.3 has only unsupported wheel variants and only foo==1.2.3 is available, we can conclude that all versions of foo cannot be used.
         And because you require foo, we can conclude that your requirements are unsatisfiable."""
CONFLICT = """error: No solution found when resolving dependencies
  cause: Because torch==2.9.1 depends on triton{platform_machine == 'x86_64'}==3.5.1 and you require torch==2.9.1, we can conclude that you require triton==3.5.1.
         And because you require triton==3.0.0, we can conclude that your requirements are unsatisfiable."""
OFFLINE = """error: No solution found when resolving dependencies
  cause: Because deepspeed was not found in the cache and you require deepspeed==0.18.5, we can conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because the network was disabled. When the network is disabled, registry packages may only be read from the cache."""
BUILD = """error: Failed to build `deepspeed==0.13.0`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.get_requires_for_build_wheel` failed (exit status: 1)

         [stderr]
         Traceback (most recent call last):
           File "<string>", line 37, in <module>
         ModuleNotFoundError: No module named 'torch'"""
HASH = """Resolved 1 package in 50ms
error: Failed to download `ninja==1.13.2`
  cause: Hash mismatch for `ninja==1.13.2`

         Expected:
           sha256:0000000000000000000000000000000000000000000000000000000000000000

         Computed:
           sha256:65a24341b5ac09fcadcc37082660be40a94174e51a937fabf6e2cae26225fa2c"""
DISK = """Resolved 1 package in 73ms
error: Failed to install: numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (numpy==2.4.6)
  cause: Failed to copy to `/somewhere/numpy.libs/libscipy.so`
  cause: failed to copy file: No space left on device (os error 28)"""
# Older releases of uv drew boxes around the same sentence.
OLD_STYLE = """  No solution found when resolving dependencies:
  ╰─▶ Because there is no version of deepspeed==99.1 and you require deepspeed==99.1, we can conclude that your requirements are unsatisfiable."""


@pytest.mark.parametrize(
    ("output", "kind", "told"),
    [
        (UNREACHABLE, NetworkError, "https://index.example.invalid/simple/deepspeed/ cannot be reached"),
        (REFUSED, NetworkError, "https://index.example.invalid:9/simple/deepspeed/ cannot be reached"),
        (CERTIFICATE, NetworkError, "cannot be reached"),
        (OFFLINE, NetworkError, "switches the network off"),
        (UNKNOWN, LockError, "nonexistent is not on the package index"),
        (NO_VERSION, LockError, "the package index has no deepspeed==99.1"),
        (VARIANTS, LockError, "foo==1.2.3 has only wheel variants"),
        (OLD_STYLE, LockError, "the package index has no deepspeed==99.1"),
        (CONFLICT, ContradictionError, "contradict each other"),
        (BUILD, LockError, "deepspeed==0.13.0 does not build from source, because its setup imports torch"),
        (HASH, ContentError, "the hash of ninja==1.13.2 is not the one of the lock"),
        (DISK, StorageError, "the disk is full"),
        ("error: something else", LockError, "uv failed"),
    ],
)
def test_a_failure_of_uv_becomes_one_sentence(output: str, kind: type[EnvsmithError], told: str) -> None:
    error = explain_failure(
        Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="resolve the packages"
    )
    assert type(error) is kind
    assert error.message.startswith("Cannot resolve the packages: ")
    assert told in error.message
    assert error.details


def test_the_details_of_a_failure_are_bounded() -> None:
    lines = ("error: Failed to build `x==1`", *(f"line {n}" for n in range(1000)))
    error = explain_failure(Finished(status=1, stdout="", lines=lines), work="resolve the packages")
    assert len(error.details) == 31
    assert error.details[0].startswith("error:")
    assert error.details[-1] == "line 999"


def test_terminal_codes_and_credentials_are_taken_out_of_a_line() -> None:
    assert clean("\x1b[31merror\x1b[0m: https://me:secret@example.invalid/x\r\n") == "error: https://example.invalid/x"


def environment(given: dict[str, str], **pip: str) -> dict[str, str]:
    """The environment of a user who tells pip ``pip`` by its variables, and whose system has certificates."""
    told = {f"PIP_{name.upper()}": value for name, value in pip.items()}
    return uv_environment({"HOME": "/nowhere", "PIP_CONFIG_FILE": os.devnull, **told, **given})


def test_what_would_change_the_resolution_is_taken_out() -> None:
    env = environment(
        {
            "UV_OVERRIDE": "x",
            "UV_TORCH_BACKEND": "cpu",
            "UV_FIND_LINKS": "/wheels",
            "UV_EXCLUDE_NEWER": "2020-01-01",
            "PYTHONPATH": "/x",
            "VIRTUAL_ENV": "/v",
        }
    )
    assert (
        not {"UV_OVERRIDE", "UV_TORCH_BACKEND", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER", "PYTHONPATH", "VIRTUAL_ENV"}
        & env.keys()
    )


def test_python_is_not_downloaded_unless_the_user_wants_it() -> None:
    assert environment({})["UV_PYTHON_DOWNLOADS"] == "never"
    assert environment({"UV_PYTHON_DOWNLOADS": "automatic"})["UV_PYTHON_DOWNLOADS"] == "automatic"


def test_no_setting_of_an_index_stays_in_the_environment_which_builds_inherit() -> None:
    logins = dict.fromkeys(
        (
            "UV_DEFAULT_INDEX",
            "UV_INDEX",
            "UV_INDEX_URL",
            "UV_EXTRA_INDEX_URL",
            "UV_INDEX_CORP_PASSWORD",
            "UV_PUBLISH_TOKEN",
        ),
        "https://ann:secret@index.example.invalid/simple",
    )
    env = environment(logins, index_url=logins["UV_INDEX"], extra_index_url=logins["UV_INDEX"], timeout="180")
    assert not [name for name, value in env.items() if "secret" in value]
    assert env["UV_HTTP_TIMEOUT"] == "180"


def test_uv_reads_its_settings_from_a_pipe_that_is_empty_for_whatever_uv_starts(tmp_path: Path) -> None:
    script = 'cat "$UV_CONFIG_FILE"; echo --; cat "$UV_CONFIG_FILE"; env'
    environ = {"PATH": os.defpath, "HOME": "/nowhere", "UV_DEFAULT_INDEX": "https://ann:secret@index.example.invalid"}
    first, _, second = dataclasses.replace(fake(tmp_path, script), environ=environ).run([]).stdout.partition("--")
    assert read_toml(first) == {"index": [{"url": environ["UV_DEFAULT_INDEX"], "default": True}]}
    assert "secret" not in second
    assert "UV_CONFIG_FILE=/dev/fd/" in second


def test_settings_that_are_longer_than_a_pipe_arrive_whole(tmp_path: Path) -> None:
    environ = {
        "PATH": os.defpath,
        "HOME": "/nowhere",
        "UV_INDEX": " ".join(f"https://i{n}.example.invalid" for n in range(5000)),
    }
    tool = dataclasses.replace(fake(tmp_path, 'cat "$UV_CONFIG_FILE"'), environ=environ)
    assert tool.run([]).stdout.count("example.invalid") == 5000


def test_the_bundle_of_the_user_is_the_one_that_uv_trusts(tmp_path: Path) -> None:
    bundle, own = tmp_path / "ca.pem", tmp_path / "own.pem"
    for path in (bundle, own):
        path.write_text("")
    assert environment({}, cert=str(bundle))["SSL_CERT_FILE"] == str(bundle)
    assert environment({"SSL_CERT_FILE": str(own)}, cert=str(bundle))["SSL_CERT_FILE"] == str(own)
    assert environment({"REQUESTS_CA_BUNDLE": str(bundle)}, cert="/gone")["SSL_CERT_FILE"] == str(bundle)


def test_the_proxy_of_pip_is_used_where_none_is_set() -> None:
    assert environment({}, proxy="http://p:1")["HTTPS_PROXY"] == "http://p:1"
    assert environment({"https_proxy": "http://mine:1"}, proxy="http://p:1").get("HTTPS_PROXY") is None


def fake(folder: Path, script: str) -> Uv:
    path = folder / "uv"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Uv(binary=str(path), environ={"PATH": os.defpath})


def test_lines_of_stderr_arrive_while_it_runs_and_stdout_is_kept(tmp_path: Path) -> None:
    seen: list[str] = []
    done = fake(tmp_path, "echo one >&2; echo out; echo two >&2; exit 3").run([], on_line=seen.append)
    assert (seen, done.stdout, done.status, done.lines) == (["one", "two"], "out\n", 3, ("one", "two"))


def test_it_runs_in_an_empty_folder(tmp_path: Path) -> None:
    assert fake(tmp_path, "ls -A | wc -l").run([]).stdout.strip() == "0"


def test_a_lot_of_output_on_both_streams_does_not_block(tmp_path: Path) -> None:
    done = fake(
        tmp_path,
        "i=0; while [ $i -lt 3000 ]; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; echo b >&2; i=$((i+1)); done",
    ).run([])
    assert (len(done.stdout.splitlines()), len(done.lines)) == (3000, 3000)


def test_a_binary_that_is_not_there_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Cannot run uv"):
        Uv(binary=str(tmp_path / "nothing"), environ={}).run([])


@pytest.mark.skipif(sys.platform != "linux", reason="process groups are looked up in /proc")
def test_an_interrupt_ends_uv_and_what_it_started(tmp_path: Path) -> None:
    uv = fake(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo started >&2; wait")
    threading.Thread(target=_interrupt_when, args=(tmp_path / "child",), daemon=True).start()
    with pytest.raises(InterruptedRunError):
        uv.run([])
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)


def _interrupt_when(path: Path) -> None:
    while not (path.exists() and path.read_text().strip()):
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_of_a_traceback_of_a_build_backend_only_the_exceptions_are_shown() -> None:
    output = """error: Failed to build `transformer-engine-torch==2.1.0`
  cause: Call to `setuptools.build_meta:__legacy__.get_requires_for_build_wheel` failed (exit status: 1)
         [stderr]
         Traceback (most recent call last):
           File "<string>", line 17, in <module>
         ModuleNotFoundError: No module named 'torch'
         The above exception was the direct cause of the following exception:
         Traceback (most recent call last):
           File "/cache/setuptools/build_meta.py", line 520, in run_setup
             exec(code, locals())
             ^^^^^^^^^^^^^^^^^^^^
         RuntimeError: This package needs Torch to build.
  hint: `transformer-engine-torch` (v2.1.0) was included"""

    error = explain_failure(
        Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="resolve the packages"
    )

    assert type(error) is LockError
    assert "its setup imports torch, which it does not declare" in error.message
    assert [line.strip() for line in error.details[2:]] == [
        "[stderr]",
        "ModuleNotFoundError: No module named 'torch'",
        "RuntimeError: This package needs Torch to build.",
        "hint: `transformer-engine-torch` (v2.1.0) was included",
    ]


def test_a_compiler_that_refuses_a_source_is_quoted_and_its_words_are_not_those_of_the_network() -> None:
    output = """See https://packages.example.org/en/latest/#license for details.
copying horovod/runner/common/util/timeout.py -> build/lib
/slots/0/horovod/torch/mpi_ops_v2.cc:26:10: fatal error: torch/extension.h: No such file or directory
gmake: *** [Makefile:136: all] Error 2
error: Failed to build `/slots/0/horovod-0.28.1.tar.gz`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)"""

    error = explain_failure(Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="compile a wheel")

    assert type(error) is LockError
    assert error.message == (
        "Cannot compile a wheel: horovod-0.28.1.tar.gz does not build from source: mpi_ops_v2.cc:26:10: "
        "fatal error: torch/extension.h: No such file or directory."
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "error: command 'x86_64-linux-gnu-g++' failed: No such file or directory",
            "failed: No such file or directory",
        ),
        ("Rust not found, installing into a temporary directory\n         Connection refused", "Rust not found"),
        ("src/mpi4py/MPI.c:1:10: fatal error: mpi.h: No such file or directory", "fatal error: mpi.h"),
    ],
)
def test_program_that_a_build_lacks_is_the_reason_and_the_hint_brings_it(said: str, reason: str) -> None:
    output = f"""error: Failed to build `ops==1.0`
  cause: The build backend returned an error
         [stdout]
         {"x86_64-linux-gnu-g++ -I/usr/include " * 40}
         [stderr]
         {said}"""

    error = explain_failure(Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="install")

    assert type(error) is MissingProgramError
    assert error.message.startswith("Cannot install: ops==1.0 does not build from source: ")
    assert reason in error.message
    assert (error.hint or "").startswith("Install what is missing (")
    assert max(map(len, error.details)) <= 240


def test_what_a_backend_raised_last_is_the_reason_where_no_compiler_was_heard() -> None:
    # fasttext 0.9.3 on a host without a compiler: its setup asks c++ in silence.
    output = """error: Failed to build `fasttext==0.9.3`
  cause: The build backend returned an error
         [stderr]
         Traceback (most recent call last):
           File "<string>", line 11, in <module>
         RuntimeError: Unsupported compiler -- at least C++17 support is needed!"""

    error = explain_failure(Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="install")

    assert error.message == (
        "Cannot install: fasttext==0.9.3 does not build from source: "
        "RuntimeError: Unsupported compiler -- at least C++17 support is needed!."
    )
    assert ("This host has no C++ compiler (c++)" in (error.hint or "")) == (shutil.which("c++") is None)


def test_a_project_that_is_taken_for_another_one_is_named_with_it() -> None:
    output = """error: Failed to build `sklearn==0.0.post12`
  cause: The build backend returned an error
         [stderr]
         The 'sklearn' PyPI package is deprecated, use 'scikit-learn'
hint: `sklearn` is often confused for `scikit-learn`. Did you mean to install `scikit-learn` instead?"""

    error = explain_failure(Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="install")

    assert (error.hint or "").startswith("Ask for scikit-learn instead of sklearn")


def test_a_build_backend_that_fetches_and_cannot_is_a_fault_of_the_network() -> None:
    output = """error: Failed to build `flash-attn==2.8.3`
  cause: The build backend returned an error
         [stderr]
         urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"""

    error = explain_failure(Finished(status=1, stdout="", lines=tuple(output.splitlines())), work="install")

    assert type(error) is NetworkError


def test_the_reason_of_uv_is_one_line_that_is_judged_whole_and_shown_in_short(tmp_path: Path) -> None:
    because = "Because package-0==1.0 depends on torch==2.9.0 and ".ljust(2800, ".")
    reason = f"{because} and deepspeed==0.18.2 depends on ninja, we conclude that "
    line = f"  No solution found when resolving dependencies: {reason}".ljust(4579, ".")
    seen: list[str] = []

    finished = fake(tmp_path, f"echo 'error: it failed' >&2; echo '{line}' >&2; exit 1").run([], on_line=seen.append)
    error = explain_failure(finished, work="resolve the packages")

    assert finished.lines == ("error: it failed", line)
    assert isinstance(error, ContradictionError)
    assert "deepspeed" in error.names
    assert max(map(len, [*seen, *error.details])) == 2000


def test_a_contradiction_names_what_depends_and_what_was_asked_for() -> None:
    lines = (
        "  No solution found when resolving dependencies:",
        "Because transformers==4.30.0 depends on zzz>=2 and you require zzz==1.0, we can conclude that it fails.",
        "And because you require NumPy==1.23.2 and scann, we can conclude that your requirements are unsatisfiable.",
    )

    error = explain_failure(Finished(status=1, stdout="", lines=lines), work="resolve")

    assert isinstance(error, ContradictionError)
    assert error.names == ("transformers", "zzz", "numpy")
    assert error.required == ("numpy", "scann")


def test_a_line_without_an_end_is_taken_in_pieces_and_judged_in_no_time(tmp_path: Path) -> None:
    finished = fake(tmp_path, "head -c 200000 /dev/zero | tr '\\0' a >&2; echo >&2; exit 1").run([])
    began = time.process_time()

    explain_failure(
        Finished(status=1, stdout="", lines=("error: Failed to build `x==1`", *finished.lines)), work="install"
    )

    assert max(map(len, finished.lines)) == 1 << 16
    assert time.process_time() - began < 5


def test_the_last_word_of_uv_is_there_after_any_length_of_output(tmp_path: Path) -> None:
    uv = fake(tmp_path, "echo begins >&2; seq 1 20000 >&2; echo 'error: Failed to build' >&2; exit 1")
    finished = uv.run([])
    assert (finished.lines[0], finished.lines[-1]) == ("begins", "error: Failed to build")
    assert len(finished.lines) < 20000


def test_a_cache_that_cannot_be_written_is_answered_with_the_variable_of_the_cache() -> None:
    lines = (
        "error: Failed to initialize cache at `/nonexistent/.cache/uv`",
        "  cause: failed to create directory `/nonexistent/.cache/uv`: Permission denied (os error 13)",
    )
    error = explain_failure(Finished(status=2, stdout="", lines=lines), work="resolve the packages")
    assert isinstance(error, StorageError)
    assert "UV_CACHE_DIR" in error.hint
