"""The base images of a container engine: known ones pulled by digest, and ones that are here already."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envsmith.base.files import digest_of, scratch
from envsmith.base.progress import EventKind, Progress, ProgressEvent, announced, silent
from envsmith.base.schema import parse_json
from envsmith.builder.engines.base import TAIL
from envsmith.builder.engines.bases import Bases, OsAnswer, load_bases
from envsmith.builder.engines.buildkit import FULL_HINT, judge
from envsmith.builder.image.context import HostSettings, read_host_settings, write_secrets
from envsmith.builder.image.dockerfile import APT_DATED, TOOL, ImageOptions, apt_probe, from_reference, tool_image
from envsmith.errors import EngineError, EnvsmithError, StorageError, refusal_of_disk
from envsmith.model import plain
from envsmith.model.lock import PACKAGES, BaseImage, OsPackage
from envsmith.model.version import minor_of
from envsmith.net.oci.canonical import canonical_config
from envsmith.net.oci.spec import canonical

_PROBE = (
    "import json, os, platform, sys; info = {}\n"
    "for line in open('/etc/os-release'):\n"
    "    key, _, value = line.strip().partition('='); info[key] = value.strip('\\\"')\n"
    "print(json.dumps([sys.executable, platform.python_version(), "
    "info.get('VERSION_CODENAME') or info.get('ID', 'unknown')]))"
)
_NO_TOOL = (
    "Load any image of that distribution into the engine and name it in ENVSMITH_TOOL "
    "(tools/base_image.py in envsmith's repository makes one), or use --engine venv."
)
_NO_PULL = "Check the name and the registry, or load the image into the engine."
# The image that unpacks a base from packages, where it is not the distribution's own.
TOOL_VARIABLE = "ENVSMITH_TOOL"
# Inst g++ [old] (4:12.2.0-3 Debian:12.15/oldstable [amd64])
_INST = re.compile(r"Inst (\S+) (?:\[[^\]]*\] )?\((\S+)[ )]")

_RUNNING = "Check that the engine is still running (docker info), then run the same command again."
# Docker 29 asks for a time namespace, which runc 1.1 does not know.
_RUNTIME = (
    "Update the runtime that starts the engine's containers (docker info names runc's release), then run it again."
)


def tool_argument() -> tuple[tuple[str, str], ...]:
    """Return the build argument for the image that unpacks a base from packages, where the user names one."""
    named = os.environ.get(TOOL_VARIABLE)
    return ((TOOL, plain.image(named)),) if named else ()


@contextlib.contextmanager
def engine_errors(work: str, *, hint: str = _RUNNING) -> Iterator[None]:
    """Raise ``EngineError``, or ``StorageError`` where its disk is full, for what the SDK and its transport raise.

    ``work`` is verb and object of what cannot be done.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        reason = str(getattr(error, "explanation", None) or error)[:400]
        raise refused(f"Cannot {work}: {reason}.", hint=hint) from error


def refused(text: str, *, hint: str = _RUNNING) -> EnvsmithError:
    """Return the error of an engine that refused: of its disk where that is full."""
    if (disk := refusal_of_disk(text)) and disk.is_full:
        return StorageError(text, hint=FULL_HINT)
    return EngineError(text, hint=_RUNTIME if "OCI runtime create failed" in text else hint)


def _stored(base: BaseImage) -> str:
    """Return the name under which an engine keeps a base: what was pulled by digest has no tag there."""
    if base.origin != "registry":
        return from_reference(base)
    return f"{_repository(base.name.partition('@')[0])}@{plain.digest(base.digest)}"


def _repository(name: str) -> str:
    """Return a name without its tag. The colon of a registry's port begins none."""
    repository, _, tag = name.rpartition(":")
    return name if not repository or "/" in tag else repository


def identity_of(attributes: Mapping[str, Any], epoch: int, base_layers: int | None = None) -> str:
    """Return the digest of an image's configuration without anything of the engine: the same wherever it is loaded.

    All of its layers are called the base's unless their number is given.
    """
    layers = [str(digest) for digest in (attributes.get("RootFS") or {}).get("Layers") or []]
    config = canonical_config(
        attributes.get("Config") or {},
        architecture=str(attributes.get("Architecture")),
        diff_ids=layers,
        base_layers=len(layers) if base_layers is None else base_layers,
        epoch=epoch,
    )
    return digest_of(canonical(config))


@dataclass(slots=True)
class BaseShelf:
    """What bases an engine has or can get.

    ``client`` is the SDK's, ``network`` that of containers which need the mirror.
    """

    client: Any
    network: str | None
    epoch: int = ImageOptions().epoch
    bases: Bases = field(default_factory=load_bases)
    _reachable: bool | None = None

    def pythons(self, base: str | None = None) -> tuple[str, ...]:
        """Return Python minors: of ``base``, else of every base that can be had."""
        packages = self.bases.pythons_from_packages
        if base is not None:
            return packages if base == PACKAGES else (minor_of(self._look_into(self._get(base))[1]),)
        images = [
            i
            for i in self.bases.images
            if self.registry_answers() or self._image_id(i.image) or self._image_id(i.pinned)
        ]
        return tuple(dict.fromkeys((*(i.python for i in images), *packages)))

    def registry_answers(self) -> bool:
        """Return whether the engine reaches the registry of the known images. It is asked once."""
        if self._reachable is None:
            self._reachable = self._offered(self.bases.images[0].pinned)
        return self._reachable

    def _offered(self, reference: str) -> bool:
        """Return whether the engine finds an image in its registry."""
        with contextlib.suppress(EngineError), engine_errors("ask the registry"):
            self.client.api.inspect_distribution(reference)
            return True
        return False

    def has_base(self, base: BaseImage) -> bool:
        """Return whether exactly this base is here or can be pulled."""
        if base.origin == PACKAGES:
            return True
        if base.origin == "registry":
            return self._image_id(_stored(base)) is not None or self.registry_answers()
        return self.find(base.digest) is not None

    def find(self, digest: str) -> str | None:
        """Return the engine's id of an image that is here: by that id, or by the digest of its configuration.

        An engine that keeps its images in containerd finds them by their manifest only. Their configurations are
        written anew here, for each number of layers that the base may have.
        """
        if (identity := self._image_id(digest)) is not None:
            return identity
        with engine_errors("list the images of the engine"):
            images = self.client.images.list()
        for image in images:
            layers = (image.attrs.get("RootFS") or {}).get("Layers") or []
            if any(identity_of(image.attrs, self.epoch, number) == digest for number in range(len(layers) + 1)):
                return str(image.id)
        return None

    def prepare(self, base: BaseImage, progress: Progress = silent) -> None:
        """Pull the base of a registry unless it is here, or give another one the name that a build asks for.

        Raises ``EngineError`` where it cannot be had, before anything is built.
        """
        if base.origin == PACKAGES:
            tool = os.environ.get(TOOL_VARIABLE) or tool_image(base)
            self._get(tool, progress, hint=_NO_TOOL)
            return
        reference = from_reference(base)
        if base.origin == "registry":
            self._get(_stored(base), progress)
        elif base.digest not in self._names(reference) and (image := self.find(base.digest)):
            repository, _, tag = reference.partition(":")
            with engine_errors(f"tag {image[:19]}"):
                self.client.images.get(image).tag(repository, tag)
        self.check(base)

    def check(self, base: BaseImage) -> None:
        """Raise ``EngineError`` unless the reference that a build uses is the base of the lock. Called after it, too."""
        if base.origin == "registry":
            return  # addressed by digest: the engine checks it
        if base.origin == PACKAGES:
            return
        names = self._names(from_reference(base))
        if base.digest not in names:
            raise EngineError(
                f"Cannot use the base {from_reference(base)}: the lock says {base.digest[:19]}, and the engine has "
                f"{min(names)[:19] if names else 'none'}.",
                hint="Load that base into the engine (docker save, docker load), or lock again with --base "
                "packages, which can be had anywhere.",
            )

    def _names(self, reference: str) -> set[str]:
        """Return by what digests an image is known, none where it is not here: the engine's own id, and one of all."""
        from docker.errors import ImageNotFound

        with engine_errors(f"look up {reference}"):
            try:
                image = self.client.images.get(reference)
            except ImageNotFound:
                return set()
        return {str(image.id), identity_of(image.attrs, self.epoch)}

    def layers(self, base: BaseImage) -> int:
        """Return the number of layers in the base image.

        They are copied unchanged. Raises ``EngineError`` when it is not here.
        """
        if base.origin == PACKAGES:
            return 0
        with engine_errors(f"look up {_stored(base)}"):
            attributes = self.client.images.get(_stored(base)).attrs
        return len((attributes.get("RootFS") or {}).get("Layers") or [])

    def _image_id(self, reference: str) -> str | None:
        from docker.errors import ImageNotFound

        with engine_errors(f"look up {reference}"):
            try:
                return str(self.client.images.get(reference).id)
            except ImageNotFound:
                return None

    def base_for(self, python: str, base: str | None, *, progress: Progress) -> BaseImage | None:
        """Return ``base`` (``NAME[:TAG][@DIGEST]``), or the known image for a Python minor, pulled or here, if any.

        Raises ``EngineError`` when ``base`` cannot be had.
        """
        if base is not None:
            return self._named(python, plain.image(base), progress)
        image = self.bases.image(python)
        if image and self._image_id(_stored(image.base())):
            return image.base()
        if image and self.registry_answers():
            self._get(image.pinned, progress)
            return image.base()
        if image and self._image_id(image.image):
            text = f"{image.image} is used as it is here; its known digest cannot be pulled"
            progress(ProgressEvent(kind=EventKind.WARNING, step="base image", text=text))
            return self._local(image.image, python)
        return None

    def _named(self, python: str, reference: str, progress: Progress) -> BaseImage:
        base = self._local(self._get(reference, progress), python)
        name, _, digest = reference.partition("@")
        digest = digest or self._pulled_digest(reference)
        if not digest:
            return base
        return replace(base, name=name, digest=digest, origin="registry", evidence=f"{reference} was asked for")

    def _get(self, reference: str, progress: Progress = silent, *, hint: str = _NO_PULL) -> str:
        """Pull an image unless it is here, and return its reference."""
        if self._image_id(plain.image(reference)) is None:
            self._pull(reference, progress, hint=hint)
        return reference

    def _pulled_digest(self, reference: str) -> str:
        """Return the digest under which the engine pulled a tag, or nothing for an image that came another way."""
        repository = _repository(reference)
        image = self.client.images.get(reference)
        digests = image.attrs.get("RepoDigests") or []
        digest = next((d.partition("@")[2] for d in digests if d.partition("@")[0] == repository), "")
        # An engine that keeps its images in containerd names every image so, pulled or not.
        return "" if digest == image.id and not self._offered(f"{repository}@{digest}") else digest

    def _pull(self, reference: str, progress: Progress, *, hint: str) -> None:
        step = "base image"
        name, _, digest = reference.partition("@")
        repository = _repository(name)
        tag = name[len(repository) + 1 :] or "latest"  # without a tag the SDK would pull every one
        with announced(progress, step, f"pulling {reference}"), engine_errors(f"pull {reference}", hint=hint):
            for line in self.client.api.pull(repository, tag=digest or tag, stream=True, decode=True):
                text = f"{line.get('id', '')} {line.get('status', '')}".strip()
                progress(ProgressEvent(kind=EventKind.LINE, step=step, text=text))
                if "error" in line:
                    raise EngineError(f"Cannot pull {reference}: {str(line['error'])[:300]}.", hint=hint)

    def _look_into(self, reference: str) -> tuple[str, str, str]:
        """Return the interpreter, its full version and the distribution of an image that is here."""
        image_id = self._image_id(reference) or ""
        code, output = self.run(image_id, ["python3", "-c", _PROBE], network="none", timeout=60)
        try:
            interpreter, version, distribution = parse_json(output.strip().splitlines()[-1])
            return plain.path(interpreter), plain.version(version), plain.distribution(distribution)
        except (ValueError, IndexError, TypeError) as error:
            raise EngineError(
                f"Cannot use the base {reference}: it has no working python3 (status {code}).",
                details=output.splitlines()[-5:],
            ) from error

    def _local(self, reference: str, python: str) -> BaseImage:
        """Return an image that is here as a base, and give it the tag that names its id."""
        interpreter, version, distribution = self._look_into(reference)
        minor = minor_of(version)
        if minor != python:
            raise EngineError(
                f"Cannot use the base {reference}: it has Python {version}, and the cell needs {python}.",
                hint=f"Name a base with Python {python}, or use --python {minor}.",
            )
        with engine_errors(f"look up {reference}"):
            image = self.client.images.get(reference)
        base = BaseImage(
            name=plain.image(reference),
            digest=identity_of(image.attrs, self.epoch),
            origin="local",
            python=interpreter,
            distribution=distribution,
            evidence=f"found in the engine; Python {version}",
        )
        repository, _, tag = from_reference(base).partition(":")
        with engine_errors(f"tag {reference}"):
            image.tag(repository, tag)
        return base

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """Return what installing ``install`` on ``base`` would add. Nothing is installed: apt is asked to simulate.

        The dated archive that a base names is asked first. Where it does not answer, its live mirror is, and the lock
        says so.
        """
        step = "distribution packages"
        progress(ProgressEvent(kind=EventKind.START, step=step, text=" ".join(install)))
        names = " ".join(plain.os_package(name) for name in install)
        ca = "ca=; if [ -s /dev/cell/ca ]; then ca='-o Acquire::https::CaInfo=/dev/cell/ca'; fi"
        script = f"{ca}; {apt_probe(names)}"
        settings = read_host_settings()
        with scratch() as folder:
            secrets = write_secrets(HostSettings(ca=settings.ca), folder)
            mounts = {str(path): {"bind": f"/dev/cell/{path.name}", "mode": "ro"} for path in secrets.values()}
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
                hint="Check the network, then run again: the base's own mirror did not answer.",
            )
        versions = {m[1]: m[2] for line in output.splitlines() if (m := _INST.match(line))}
        dated = next((line.split()[1] for line in output.splitlines() if line.startswith(APT_DATED)), "")
        source = f"snapshot {dated}" if dated else f"mirror {dt.datetime.now(dt.timezone.utc).date().isoformat()}"
        progress(
            ProgressEvent(kind=EventKind.DONE, step=step, text=f"{len(versions)} packages by exact version, {source}")
        )
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
            with engine_errors(f"run a container of {image}"):
                container = self.client.containers.create(image, command, network_mode=network, **options)
                container.start()
                code = int(container.wait(timeout=timeout)["StatusCode"])
                return code, container.logs(stdout=True, stderr=True).decode(errors="replace")
        finally:
            if container is not None:
                with contextlib.suppress(EngineError), engine_errors("remove the container"):
                    container.remove(force=True)
