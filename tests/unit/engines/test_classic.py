"""Builds without BuildKit against a pretended engine: what is understood, what a step sees, what is kept and what is not."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from envsmith.engine import classic
from envsmith.engine.classic import STEPS, ClassicBuilder, Mount, parse_dockerfile
from envsmith.engines import buildkit
from envsmith.engines.docker import DockerEngine
from envsmith.errors import BuildError, EngineError, InterruptedRunError
from envsmith.image.dockerfile import render, render_builder
from envsmith.progress import EventKind

docker = pytest.importorskip("docker")


class Engine:
    """Every container writes a layer of its own; an image is the list of what was done to it."""

    def __init__(self):
        self.known = {"base": Image(self, "base", ())}
        self.images = self.containers = self
        self.created, self.removed, self.status, self.output = [], [], 0, [b"one line\nand ", b"another"]

    def get(self, name):
        if name not in self.known:
            raise docker.errors.ImageNotFound("none")
        return self.known[name]

    def remove(self, name):
        self.removed.append(name)

    def create(self, image, command, **options):
        made = Container(self, image, command, options)
        self.created.append(made)
        return made


class Image:
    def __init__(self, engine, identity, done, changes=()):
        self.engine, self.id, self.done, self.changes = engine, identity, done, changes

    def tag(self, repository, tag):
        self.engine.known[f"{repository}:{tag}"] = self


class Container:
    def __init__(self, engine, image, command, options):
        self.engine, self.image, self.command, self.options = engine, image, command, options
        self.gone = self.killed = False
        self.seen = {m["Target"]: Path(m["Source"]) for m in options["mounts"]}
        self.texts = {t: p.read_text() for t, p in self.seen.items() if p.is_file() and p.suffix != ".bin"}

    def start(self):
        pass

    def logs(self, **_how):
        yield from self.engine.output

    def wait(self):
        return {"StatusCode": self.engine.status}

    def kill(self):
        self.killed = True

    def commit(self, message="", changes=()):
        done = (*self.engine.known[self.image].done, self.command[-1])
        identity = f"image{len(self.engine.known)}"
        self.engine.known[identity] = Image(self.engine, identity, done, tuple(changes))
        return self.engine.known[identity]

    def get_archive(self, _path):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in (("wheels/a-1-py3-none-any.whl", b"wheel"), ("wheels/../../b.whl", b"other")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return [out.getvalue()], {}

    def remove(self, force):
        self.gone = force


TEXT = """# a comment
FROM base AS ground

RUN --mount=type=bind,source=uv,target=/dev/envsmith/uv \\
    --mount=type=secret,id=ca,target=/dev/envsmith/ca,required=false,mode=0444 \\
    echo one && \\
    echo torch requirements-torch

FROM ground AS wheels
# in between
RUN mkdir /wheels

FROM ground

RUN --mount=type=bind,from=wheels,source=/wheels,target=/dev/envsmith/built \\
    echo requirements-framework

ENV A=b \\
    C=d
USER 1:1
LABEL x="y z"
"""


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def builder(engine, tmp_path):
    context = tmp_path / "context"
    context.mkdir()
    (context / "uv").write_text("the uv")
    (context / "Dockerfile").write_text(TEXT)
    (tmp_path / "ca").write_text("certificates")
    return ClassicBuilder(
        client=engine,
        context=context,
        secrets={"ca": tmp_path / "ca"},
        variables=(("HTTPS_PROXY", "http://me:se'cret@proxy"),),
        network="host",
        progress=lambda _event: None,
    )


def test_every_dockerfile_of_ours_is_understood(locks):
    for text in (
        render(locks.with_wheels(locks.deepspeed())),
        render(locks.megatron()),
        render_builder(locks.deepspeed()),
        render_builder(locks.compiled()),
    ):
        found = parse_dockerfile(text)
        assert found[0].word == "FROM"
        steps = [one for one in found if one.word == "RUN"]
        assert all(step.text and not step.text.startswith("--") for step in steps)
        assert sum(len(step.mounts) for step in steps) == text.count("--mount=")


def test_mounts_are_read():
    step = parse_dockerfile(TEXT)[1]
    assert step.mounts == (
        Mount(kind="bind", source="uv", target="/dev/envsmith/uv"),
        Mount(kind="secret", source="ca", target="/dev/envsmith/ca", required=False),
    )
    assert step.text == "echo one && \\\n    echo torch requirements-torch"


@pytest.mark.parametrize("text", ["ADD x /", "RUN --mount=type=cache,target=/x true", "ONBUILD RUN true"])
def test_what_our_renderer_does_not_write_is_refused(text):
    with pytest.raises(EngineError, match="not understood"):
        parse_dockerfile(text)


def test_steps_see_their_files_and_nothing_else(builder, engine):
    image = builder.build()
    one, wheels, _reading, framework, _last = engine.created
    assert one.texts["/dev/envsmith/uv"] == "the uv"
    assert one.texts["/dev/envsmith/ca"] == "certificates"
    assert set(wheels.seen) == {"/dev/envsmith/.variables"}
    assert framework.seen["/dev/envsmith/built"].name == "stage-wheels"
    assert {c.options["network_mode"] for c in engine.created} == {"host"}
    assert all(c.options["mounts"][0]["ReadOnly"] for c in (one, framework))
    assert engine.known[image].changes == ("ENV A=b C=d", "USER 1:1", 'LABEL x="y z"')
    # The stage of the wheels is no part of the image.
    assert [text.rpartition("; ")[2].split("&&")[-1].strip("\\\n ") for text in engine.known[image].done] == [
        "echo torch requirements-torch", "echo requirements-framework", "true",
    ]  # fmt: skip


def test_containers_are_gone_and_variables_stand_in_none_of_them(builder, engine):
    builder.build()
    assert all(c.gone for c in engine.created)
    assert not buildkit.STOPS
    told = repr([(c.command, {k: v for k, v in c.options.items() if k != "mounts"}) for c in engine.created])
    assert "cret" not in told
    assert engine.created[0].texts["/dev/envsmith/.variables"] == "HTTPS_PROXY='http://me:se'\"'\"'cret@proxy'\n"


def test_finished_steps_are_taken_until_a_file_or_the_words_change(builder, engine):
    first = builder.build()
    count = len(engine.created)
    events = []
    builder.progress = events.append
    builder.build()
    assert [(e.step, e.kind) for e in events if e.kind is EventKind.CACHED] == [
        ("torch layer", EventKind.CACHED),
        ("framework layer", EventKind.CACHED),
    ]
    # The wheels are read again, and the image is finished again.
    assert len(engine.created) == count + 2
    (builder.context / "uv").write_text("another uv")
    builder.build()
    assert len(engine.created) == count + 2 + 5
    assert engine.known[first]


def test_without_cache_nothing_is_taken_and_nothing_is_kept(builder, engine):
    builder.build()
    before = {name for name in engine.known if name.startswith(STEPS)}
    builder.cache = False
    image = builder.build()
    assert {name for name in engine.known if name.startswith(STEPS)} == before
    assert engine.removed
    assert image not in engine.removed


def test_a_step_that_fails_shows_its_lines(builder, engine):
    engine.status, engine.output = 1, [b"first\nE: Version '1' for 'x' was not", b" found\n"]
    with pytest.raises(BuildError, match="torch layer failed") as caught:
        builder.build()
    assert caught.value.details == ("first", "E: Version '1' for 'x' was not found")
    assert "mirror has moved on" in caught.value.hint
    assert all(c.gone for c in engine.created)


def test_ctrl_c_removes_the_container(builder, engine):
    def interrupted():
        yield b"line\n"
        raise KeyboardInterrupt

    engine.output = interrupted()
    with pytest.raises(InterruptedRunError):
        builder.build()
    assert all(c.gone for c in engine.created)


def test_what_runs_can_be_ended_from_another_thread(builder, engine):
    def told():
        yield b"line\n"
        buildkit.end_all()

    engine.output = told()
    builder.build()
    assert engine.created[0].killed


def test_wheels_are_written_by_name_and_no_path_is_followed(builder, tmp_path):
    (builder.context / "Dockerfile").write_text(
        TEXT.partition("FROM ground\n")[0] + "FROM scratch AS built\nCOPY --from=wheels /wheels /\n"
    )
    assert builder.build(output=tmp_path / "out" / "here") == ""
    assert sorted(p.name for p in (tmp_path / "out" / "here").iterdir()) == ["a-1-py3-none-any.whl", "b.whl"]
    assert not (tmp_path / "b.whl").exists()


def test_a_file_that_the_context_lacks_is_named(builder):
    (builder.context / "uv").unlink()
    with pytest.raises(Exception, match="the build context lacks it"):
        builder.build()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("http+docker://localhost", True),
        ("unix:///run/x", True),
        ("http+docker://ssh", False),
        ("http://far:2375", False),
    ],
)
def test_the_engine_has_to_be_here(address, local):
    assert (classic.needs_local(address) is None) is local


def test_it_is_used_when_asked_for_or_when_no_client_has_buildkit(monkeypatch):
    monkeypatch.setattr(buildkit, "find_client", lambda: "/usr/bin/docker")
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    events = []
    assert DockerEngine._buildkit(events.append) == "/usr/bin/docker"
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    assert DockerEngine._buildkit(events.append) is None

    def none_here():
        raise EngineError("no client", details=["/bin/docker: version 28.2 without the buildx plugin"])

    monkeypatch.delenv("DOCKER_BUILDKIT")
    monkeypatch.setattr(buildkit, "find_client", none_here)
    assert DockerEngine._buildkit(events.append) is None
    assert [e.text for e in events] == [
        "without BuildKit: DOCKER_BUILDKIT asks for it",
        "without BuildKit: /bin/docker: version 28.2 without the buildx plugin",
    ]
    assert DockerEngine._unbuildable("http+docker://localhost") is None
    assert "must be on this machine" in (DockerEngine._unbuildable("http://far:2375") or "")
