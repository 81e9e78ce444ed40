"""The base images of a container engine: known ones pulled by digest, and ones that are here already."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from envsmith import plain
from envsmith.engines.base import TAIL
from envsmith.engines.bases import Bases, OsAnswer, load_bases
from envsmith.engines.buildkit import FULL_HINT, judge
from envsmith.errors import FULL, EngineError, StorageError, of_the_system
from envsmith.files import scratch
from envsmith.image.context import HostSettings, read_host_settings, write_secrets
from envsmith.image.dockerfile import APT_DATED, apt_probe, from_reference
from envsmith.model.lock import BaseImage, OsPackage
from envsmith.model.version import minor_of
from envsmith.progress import Event, EventKind, Progress, silent
from envsmith.schema import parse_json

_PROBE = (
    "import json, os, platform, sys; info = {}\n"
    "for line in open('/etc/os-release'):\n"
    "    key, _, value = line.strip().partition('='); info[key] = value.strip('\\\"')\n"
    "print(json.dumps([sys.executable, platform.python_version(), "
    "info.get('VERSION_CODENAME') or info.get('ID', 'unknown')]))"
)
_NO_BASE = (
    "load one into the engine and name it with --base "
    "(tools/base_image.py in envsmith's repository makes one from Debian's packages), "
    "or use --engine venv"
)
# Inst g++ [old] (4:12.2.0-3 Debian:12.15/oldstable [amd64])
_INST = re.compile(r"Inst (\S+) (?:\[[^\]]*\] )?\((\S+)[ )]")


@contextlib.contextmanager
def engine_errors(what: str, *, hint: str = "is the engine still running? (docker info)") -> Iterator[None]:
    """Turn what the SDK and its transport raise into ``EngineError``, or ``StorageError`` where its disk is full."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        text = f"{what}: {str(getattr(error, 'explanation', None) or error)[:400]}"
        if of_the_system(text) == FULL:
            raise StorageError(text, hint=FULL_HINT) from error
        raise EngineError(text, hint=hint) from error


@dataclass(slots=True)
class BaseShelf:
    """What bases an engine has or can get.

    ``client`` is the SDK's, ``network`` that of containers which need the mirror.
    """

    client: Any
    network: str | None
    bases: Bases = field(default_factory=load_bases)
    _reachable: bool | None = None

    def pythons(self, base: str | None = None) -> tuple[str, ...]:
        """Return Python minors, best first: of ``base``, else of every image that can be pulled, else of what is here.

        Raises ``EngineError`` when no base can be had.
        """
        if base is not None:
            return (self._look_into(self._get(base))[1].rpartition(".")[0],)
        if self.registry_answers():
            return tuple(i.python for i in self.bases.images)
        here = [i.python for i in self.bases.images if self._image_id(i.image) or self._image_id(i.pinned)]
        if not here:
            raise EngineError(
                "no base image can be had: the registry does not answer, and no known image is in the engine",
                hint=_NO_BASE,
            )
        return tuple(dict.fromkeys(here))

    def registry_answers(self) -> bool:
        """Return whether the engine reaches the registry of the known images. It is asked once."""
        if self._reachable is None:
            self._reachable = False
            with contextlib.suppress(EngineError), engine_errors("the registry does not answer"):
                self.client.api.inspect_distribution(self.bases.images[0].pinned)
                self._reachable = True
        return self._reachable

    def has(self, base: BaseImage) -> bool:
        """Return whether exactly this base is here or can be pulled."""
        if base.origin == "registry":
            return self._image_id(from_reference(base)) is not None or self.registry_answers()
        return self._image_id(from_reference(base)) == base.digest

    def has_image(self, image: str) -> bool:
        """Return whether an image is here by its id."""
        return self._image_id(image) is not None

    def check(self, base: BaseImage) -> None:
        """Raise ``EngineError`` unless the reference that a build will use is the base of the lock.

        Called before and after a build.
        """
        if base.origin == "registry":
            return  # addressed by digest: the engine checks it
        present = self._image_id(from_reference(base))
        if present != base.digest:
            raise EngineError(
                f"base {from_reference(base)}: the lock says {base.digest[:19]}, "
                f"the engine has {present[:19] if present else 'none'}",
                hint="load that base into the engine (docker save, docker load; tools/base_image.py makes it again), "
                "or lock again with a base that is here: --base",
            )

    def layers(self, base: BaseImage) -> int:
        """Return the number of layers in the base image.

        They are copied unchanged. Raises ``EngineError`` when it is not here.
        """
        with engine_errors(f"the engine cannot look up {from_reference(base)}"):
            attributes = self.client.images.get(from_reference(base)).attrs
        return len((attributes.get("RootFS") or {}).get("Layers") or [])

    def _image_id(self, reference: str) -> str | None:
        from docker.errors import ImageNotFound

        with engine_errors(f"the engine cannot look up {reference}"):
            try:
                return str(self.client.images.get(reference).id)
            except ImageNotFound:
                return None

    def base_for(self, python: str, base: str | None, *, progress: Progress) -> BaseImage:
        """Return ``base`` (``NAME[:TAG][@DIGEST]``), or the known one for a Python minor, pulled or here.

        Raises ``EngineError`` when neither can be had.
        """
        if base is not None:
            return self._named(python, plain.image(base), progress)
        image = self.bases.image(python)
        if image and self._image_id(f"{image.image.split(':')[0]}@{image.digest}"):
            return image.base()
        if image and self.registry_answers():
            self._pull(image.pinned, progress)
            return image.base()
        if image and self._image_id(image.image):
            text = f"{image.image} is used as it is here; its known digest cannot be pulled"
            progress(Event(kind=EventKind.WARNING, step="base image", text=text))
            return self._local(image.image, python)
        why = f"{image.image} cannot be pulled" if image else "none is known"
        raise EngineError(
            f"no base image with Python {python} can be had: {why}",
            hint=_NO_BASE,
        )

    def _named(self, python: str, reference: str, progress: Progress) -> BaseImage:
        base = self._local(self._get(reference, progress), python)
        name, _, digest = reference.partition("@")
        digest = digest or self._pulled_digest(reference)
        if not digest:
            return base
        return replace(base, name=name, digest=digest, origin="registry", evidence=f"{reference} was asked for")

    def _get(self, reference: str, progress: Progress = silent) -> str:
        """Pull an image unless it is here, and return its reference."""
        if self._image_id(plain.image(reference)) is None:
            self._pull(reference, progress)
        return reference

    def _pulled_digest(self, reference: str) -> str:
        """Return the digest under which the engine pulled a tag, or nothing for an image that came another way."""
        repository = reference.rpartition(":")[0] if ":" in reference.rpartition("/")[2] else reference
        digests = self.client.images.get(reference).attrs.get("RepoDigests") or []
        return next((d.partition("@")[2] for d in digests if d.partition("@")[0] == repository), "")

    def _pull(self, reference: str, progress: Progress) -> None:
        step = "base image"
        progress(Event(kind=EventKind.START, step=step, text=f"pulling {reference}"))
        started = time.monotonic()
        name, _, digest = reference.partition("@")
        repository, colon, tag = name.rpartition(":")
        if not colon or "/" in tag:  # the colon of a registry's port; without a tag the SDK would pull every one
            repository, tag = name, "latest"
        hint = "check the name and the registry, or load the image into the engine"
        with engine_errors(f"{reference} cannot be pulled", hint=hint):
            for line in self.client.api.pull(repository, tag=digest or tag, stream=True, decode=True):
                text = f"{line.get('id', '')} {line.get('status', '')}".strip()
                progress(Event(kind=EventKind.LINE, step=step, text=text))
                if "error" in line:
                    raise EngineError(f"{reference} cannot be pulled: {str(line['error'])[:300]}", hint=hint)
        progress(Event(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))

    def _look_into(self, reference: str) -> tuple[str, str, str]:
        """Return the interpreter, its full version and the distribution of an image that is here."""
        image_id = self._image_id(reference) or ""
        code, output = self.run(image_id, ["python3", "-c", _PROBE], network="none", timeout=60)
        try:
            interpreter, version, distribution = parse_json(output.strip().splitlines()[-1])
            return plain.path(interpreter), plain.version(version), plain.distribution(distribution)
        except (ValueError, IndexError, TypeError) as error:
            raise EngineError(
                f"base {reference} has no working python3 (status {code})", details=output.splitlines()[-5:]
            ) from error

    def _local(self, reference: str, python: str) -> BaseImage:
        """Return an image that is here as a base, and give it the tag that names its id."""
        interpreter, version, distribution = self._look_into(reference)
        minor = minor_of(version)
        if minor != python:
            raise EngineError(
                f"base {reference} has Python {version}, the cell needs {python}",
                hint=f"name a base with Python {python}, or ask for --python {minor}",
            )
        image_id = self._image_id(reference) or ""
        base = BaseImage(
            name=plain.image(reference),
            digest=plain.digest(image_id),
            origin="local",
            python=interpreter,
            distribution=distribution,
            evidence=f"found in the engine; Python {version}",
        )
        repository, _, tag = from_reference(base).partition(":")
        with engine_errors(f"{image_id[:19]} cannot be tagged"):
            self.client.images.get(image_id).tag(repository, tag)
        return base

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """Return what installing ``install`` on ``base`` would add. Nothing is installed: apt is asked to simulate.

        The dated archive that a base names is asked first; where it does not answer, its live mirror, and the lock says
        so.
        """
        step = "distribution packages"
        progress(Event(kind=EventKind.START, step=step, text=" ".join(install)))
        names = " ".join(plain.os_package(name) for name in install)
        ca = "ca=; if [ -s /dev/envsmith/ca ]; then ca='-o Acquire::https::CaInfo=/dev/envsmith/ca'; fi"
        script = f"{ca}; {apt_probe(names)}"
        settings = read_host_settings()
        with scratch() as folder:
            secrets = write_secrets(HostSettings(ca=settings.ca), folder)
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
            raise judge(
                step,
                output.splitlines()[-TAIL:],
                hint="the base's own mirror did not answer; check the network, then run again",
            )
        versions = {m[1]: m[2] for line in output.splitlines() if (m := _INST.match(line))}
        dated = next((line.split()[1] for line in output.splitlines() if line.startswith(APT_DATED)), "")
        source = f"snapshot {dated}" if dated else f"mirror {dt.datetime.now(dt.timezone.utc).date().isoformat()}"
        progress(Event(kind=EventKind.DONE, step=step, text=f"{len(versions)} packages by exact version, {source}"))
        packages = [
            OsPackage(name=plain.os_package(n), version=plain.os_version(v)) for n, v in sorted(versions.items())
        ]
        return OsAnswer(packages=tuple(packages), source=source)

    def run(
        self, image: str, command: list[str], *, network: str | None, timeout: int, **options: Any
    ) -> tuple[int, str]:
        """Run a command to its end in a container of its own and return its status and output.

        The container never outlives the call. Raises ``EngineError`` when it cannot be run, or takes more than
        ``timeout`` seconds.
        """
        container = None
        try:
            with engine_errors(f"a container of {image} failed"):
                container = self.client.containers.create(image, command, network_mode=network, **options)
                container.start()
                code = int(container.wait(timeout=timeout)["StatusCode"])
                return code, container.logs(stdout=True, stderr=True).decode(errors="replace")
        finally:
            if container is not None:
                with contextlib.suppress(EngineError), engine_errors("it is gone already"):
                    container.remove(force=True)
