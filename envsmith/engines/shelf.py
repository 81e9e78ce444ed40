"""The base images of a docker engine: known ones pulled by digest, ones that are here already, and bootstrapped ones."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envsmith import plain
from envsmith.engines.base import failed_step
from envsmith.engines.bases import Bases, Bootstrap, KnownImage, OsAnswer, load_bases
from envsmith.engines.bootstrap import Recipe, archive, make_root, missing_tool
from envsmith.errors import EngineError
from envsmith.image.context import read_host_settings, write_secrets
from envsmith.image.dockerfile import APT_DATED, apt_probe, from_reference
from envsmith.model.cell import Platform
from envsmith.model.lock import BaseImage, OsPackage
from envsmith.progress import Event, EventKind, Progress

_OWN = "envsmith/base"
_PROBE = (
    "import json, os, platform, sys; info = {}\n"
    "for line in open('/etc/os-release'):\n"
    "    key, _, value = line.strip().partition('='); info[key] = value.strip('\\\"')\n"
    "print(json.dumps([os.path.realpath(sys.executable), sys.executable, platform.python_version(), "
    "info.get('VERSION_CODENAME') or info.get('ID', 'unknown')]))"
)
# Inst g++ [old] (4:12.2.0-3 Debian:12.15/oldstable [amd64])
_INST = re.compile(r"Inst (\S+) (?:\[[^\]]*\] )?\((\S+)[ )]")


def _today() -> str:
    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def _absent() -> tuple[type[Exception], ...]:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    return (DockerException, RequestException)


@dataclass(slots=True)
class BaseShelf:
    """What bases an engine has or can get. ``client`` is the SDK's, ``network`` that of containers which need the mirror."""

    client: Any
    network: str | None
    bases: Bases = field(default_factory=load_bases)
    _reachable: bool | None = None

    # -- what is there -------------------------------------------------------------------------------------------------

    def pythons(self) -> tuple[str, ...]:
        """Python minors, best first: every known image when a registry answers, else what is here or can be bootstrapped."""
        if self.registry_answers():
            return tuple(i.python for i in self.bases.images)
        here = [
            i.python for i in self.bases.images if self._image_id(i.image) or self._image_id(f"{i.image}@{i.digest}")
        ]
        made = [b.python for b in self.bases.bootstraps if missing_tool() is None or self._own(b)]
        return tuple(dict.fromkeys([*here, *made]))

    def registry_answers(self) -> bool:
        """Whether the engine reaches the registry of the known images: asked once, by the digest of one of them."""
        if self._reachable is None:
            self._reachable = False
            with contextlib.suppress(*_absent()):
                known = self.bases.images[0]
                self.client.api.inspect_distribution(f"{known.image}@{known.digest}")
                self._reachable = True
        return self._reachable

    def has(self, base: BaseImage) -> bool:
        """Whether exactly this base is here or can be pulled."""
        if base.origin == "registry":
            return self._image_id(from_reference(base)) is not None or self.registry_answers()
        return self._image_id(from_reference(base)) == base.digest

    def has_image(self, image: str) -> bool:
        """Whether an image is here by its id."""
        return self._image_id(image) is not None

    def check(self, base: BaseImage) -> None:
        """``EngineError`` unless the reference that a build will use is the base of the lock. Called before and after a build."""
        if base.origin == "registry":
            return  # addressed by digest: the engine checks it
        found = self._image_id(from_reference(base))
        if found != base.digest:
            raise EngineError(
                f"base {from_reference(base)}: the lock says {base.digest[:19]}, the engine has {found[:19] if found else 'none'}",
                hint="run the command again: the image part of the lock is made anew with the base that is here",
            )

    def layers(self, base: BaseImage) -> int:
        """How many layers the base has: they are nobody's work of ours and stay as they are.

        ``EngineError`` when it is not here.
        """
        try:
            found = self.client.images.get(from_reference(base)).attrs
        except _absent() as error:
            raise EngineError(f"the engine cannot look up {from_reference(base)}: {str(error)[:200]}") from error
        return len((found.get("RootFS") or {}).get("Layers") or [])

    def _image_id(self, reference: str) -> str | None:
        from docker.errors import ImageNotFound

        try:
            return str(self.client.images.get(reference).id)
        except ImageNotFound:
            return None
        except _absent() as error:
            raise EngineError(f"the engine cannot look up {reference}: {str(error)[:200]}") from error

    # -- choosing ------------------------------------------------------------------------------------------------------

    def base_for(self, python: str, wanted: str | None, *, progress: Progress) -> BaseImage:
        """See :class:`envsmith.engines.bases.ImageProvider`."""
        if wanted is not None:
            return self._wanted(python, plain.image(wanted), progress)
        known = self.bases.image(python)
        if known and self._image_id(f"{known.image.split(':')[0]}@{known.digest}"):
            return known.base()
        if known and self.registry_answers():
            self._pull(f"{known.image}@{known.digest}", progress)
            return known.base()
        if known and self._image_id(known.image):
            progress(
                Event(
                    kind=EventKind.WARNING,
                    step="base image",
                    text=f"{known.image} is used as it is here; its known digest cannot be pulled",
                )
            )
            return self._local(known.image, python)
        return self._bootstrapped(python, known, progress)

    def _wanted(self, python: str, wanted: str, progress: Progress) -> BaseImage:
        if self._image_id(wanted) is None:
            self._pull(wanted, progress)
        base = self._local(wanted, python)
        name, _, digest = wanted.partition("@")
        digest = digest or self._pulled_digest(wanted)
        if not digest:
            return base
        return replace(base, name=name, digest=digest, origin="registry", evidence=f"{wanted} was asked for")

    def _pulled_digest(self, wanted: str) -> str:
        """The digest under which the engine pulled a tag; empty for an image that came another way."""
        repository = wanted.rpartition(":")[0] if ":" in wanted.rpartition("/")[2] else wanted
        known = self.client.images.get(wanted).attrs.get("RepoDigests") or []
        return next((d.partition("@")[2] for d in known if d.partition("@")[0] == repository), "")

    def _pull(self, reference: str, progress: Progress) -> None:
        step = "base image"
        progress(Event(kind=EventKind.START, step=step, text=f"pulling {reference}"))
        started = time.monotonic()
        try:
            name, _, digest = reference.partition("@")
            repository, colon, tag = name.rpartition(":")
            if not colon or "/" in tag:  # the colon of a registry's port; without a tag the SDK would pull every one
                repository, tag = name, "latest"
            for line in self.client.api.pull(repository, tag=digest or tag, stream=True, decode=True):
                progress(
                    Event(kind=EventKind.LINE, step=step, text=f"{line.get('id', '')} {line.get('status', '')}".strip())
                )
                if "error" in line:
                    raise EngineError(
                        f"{reference} cannot be pulled: {str(line['error'])[:300]}",
                        hint="check the name and the registry, or load the image into the engine",
                    )
        except _absent() as error:
            raise EngineError(
                f"{reference} cannot be pulled: {str(error)[:300]}",
                hint="check the name and the registry, or load the image into the engine",
            ) from error
        progress(Event(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))

    def _local(self, reference: str, python: str) -> BaseImage:
        """Look into an image that is here, and give it the tag that names its id."""
        import json

        image_id = self._image_id(reference) or ""
        code, output = self.run(image_id, ["python3", "-c", _PROBE], network="none", timeout=60)
        try:
            _, interpreter, version, distribution = json.loads(output.strip().splitlines()[-1])
            base = BaseImage(
                name=plain.image(reference),
                digest=plain.digest(image_id),
                origin="local",
                python=plain.path(interpreter),
                distribution=plain.distribution(distribution),
                evidence=f"found in the engine; Python {plain.version(version)}",
            )
        except (ValueError, IndexError, TypeError) as error:
            raise EngineError(
                f"base {reference} has no working python3 (status {code})", details=output.splitlines()[-5:]
            ) from error
        if ".".join(version.split(".")[:2]) != python:
            raise EngineError(
                f"base {reference} has Python {version}, the cell needs {python}",
                hint=f"name a base with Python {python}, or ask for --python {'.'.join(version.split('.')[:2])}",
            )
        self._tag(image_id, base)
        return base

    def _tag(self, image_id: str, base: BaseImage) -> None:
        repository, _, tag = from_reference(base).partition(":")
        try:
            self.client.images.get(image_id).tag(repository, tag)
        except _absent() as error:
            raise EngineError(f"{image_id[:19]} cannot be tagged: {str(error)[:200]}") from error

    # -- bootstrapping -------------------------------------------------------------------------------------------------

    def _own(self, made: Bootstrap) -> str | None:
        """The id of the base that was bootstrapped here last for a distribution."""
        try:
            images = self.client.images.list(name=_OWN)
        except _absent() as error:
            raise EngineError(f"the engine cannot list its images: {str(error)[:200]}") from error
        # podman puts a host in front of every name: localhost for what was made here.
        mine = [
            i
            for i in images
            if any(t.removeprefix("localhost/") == f"{_OWN}:{made.distribution}-{i.id[7:19]}" for t in i.tags)
        ]
        # Created is the same for all of them; the tag's time is when it was loaded.
        mine.sort(key=lambda i: str((i.attrs.get("Metadata") or {}).get("LastTagTime", "")), reverse=True)
        ours = [
            i
            for i in mine
            if (i.attrs.get("Comment") or "") == ""
            and any("bootstrap" in str(h.get("CreatedBy", "")) for h in i.history())
        ]
        return str(ours[0].id) if ours else None

    def _bootstrapped(self, python: str, known: KnownImage | None, progress: Progress) -> BaseImage:
        made = self.bases.bootstrap(python=python)
        if made is None:
            offered = ", ".join(b.python for b in self.bases.bootstraps)
            raise EngineError(
                f"no base image with Python {python} can be had: {known.image if known else 'none is known,'} cannot be pulled, and none can be made here",
                hint=f"load one into the engine and name it with --base, or ask for --python {offered.replace(', ', ' or ')}",
            )
        progress(
            Event(
                kind=EventKind.WARNING,
                step="base image",
                text=f"no registry answers: the base is made here from {made.distribution}'s own packages (Python {python}), not {known.image if known else 'a known image'}",
            )
        )
        image_id = self._own(made) or self._make(made, progress)
        return BaseImage(
            name=f"{_OWN}:{made.distribution}-{image_id[7:19]}",
            digest=image_id,
            origin="bootstrapped",
            python=made.interpreter,
            distribution=made.distribution,
            evidence=f"bootstrapped on this machine from {made.distribution}'s packages ({', '.join(made.include)}), because no registry answered",
        )

    def _make(self, made: Bootstrap, progress: Progress) -> str:
        with tempfile.TemporaryDirectory(prefix="envsmith-base-") as folder:
            root = Path(folder) / "root.tar"
            platform = Platform.host()
            make_root(Recipe(distribution=made.distribution, include=made.include, platform=platform), root, progress)
            image_id, chunks = archive(root, f"{_OWN}:{made.distribution}-{{id}}", platform)
            try:
                for _ in self.client.api.load_image(chunks):
                    pass
            except _absent() as error:
                raise EngineError(f"the engine did not take the bootstrapped base: {str(error)[:300]}") from error
        if self._image_id(f"{_OWN}:{made.distribution}-{image_id[7:19]}") != image_id:
            raise EngineError("the engine gave the bootstrapped base another id than its content has")
        return image_id

    # -- containers ----------------------------------------------------------------------------------------------------

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """See :class:`envsmith.engines.bases.ImageProvider`. Nothing is installed: apt is asked to simulate.

        The dated archive that a base names is asked first; where it does not answer, its live mirror, and the lock says so.
        """
        step = "distribution packages"
        progress(Event(kind=EventKind.START, step=step, text=" ".join(install)))
        names = " ".join(plain.os_package(name) for name in install)
        ca = "ca=; if [ -s /dev/envsmith/ca.pem ]; then ca='-o Acquire::https::CaInfo=/dev/envsmith/ca.pem'; fi"
        script = f"{ca}; {apt_probe(names)}"
        settings = read_host_settings()
        with tempfile.TemporaryDirectory(prefix="envsmith-apt-") as folder:
            secrets = write_secrets(replace(settings, uv_toml=""), Path(folder))
            mounts = {str(path): {"bind": f"/dev/envsmith/{path.name}", "mode": "ro"} for path in secrets.values()}
            code, output = self.run(
                from_reference(base),
                ["/bin/sh", "-c", script],
                network=self.network,
                timeout=300,
                volumes=mounts,
                environment=dict(settings.proxies),
                user="0",
            )
        if code:
            raise failed_step(
                step,
                output.splitlines(),
                hint="the base's own mirror did not answer; check the network, then run again",
            )
        found = {m[1]: m[2] for line in output.splitlines() if (m := _INST.match(line))}
        dated = next((line.split()[1] for line in output.splitlines() if line.startswith(APT_DATED)), "")
        source = f"snapshot {dated}" if dated else f"mirror {_today()}"
        progress(Event(kind=EventKind.DONE, step=step, text=f"{len(found)} packages by exact version, {source}"))
        packages = [OsPackage(name=plain.os_package(n), version=plain.os_version(v)) for n, v in sorted(found.items())]
        return OsAnswer(packages=tuple(packages), source=source)

    def run(
        self, image: str, command: list[str], *, network: str | None, timeout: int, **options: Any
    ) -> tuple[int, str]:
        """Run a command to its end in a container of its own: its status and its output. The container never outlives the call.

        ``EngineError`` when it cannot be run, or takes more than ``timeout`` seconds.
        """
        container = None
        try:
            container = self.client.containers.create(image, command, network_mode=network, **options)
            container.start()
            code = int(container.wait(timeout=timeout)["StatusCode"])
            return code, container.logs(stdout=True, stderr=True).decode(errors="replace")
        except _absent() as error:
            raise EngineError(
                f"a container of {image} failed: {str(error)[:300]}", hint="is the engine still running? (docker info)"
            ) from error
        finally:
            if container is not None:
                with contextlib.suppress(*_absent()):
                    container.remove(force=True)
