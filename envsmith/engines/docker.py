"""The docker engine: a lock becomes an image, its content is compared with the lock, and only then it gets its name.

The SDK (package ``docker``) is used for everything it can do; the build itself goes through the command line (``buildkit``).
Containers that are started here are removed by their own id, whatever happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.engine import classic
from envsmith.engines import buildkit
from envsmith.engines.base import Built, engine_errors, verify_content
from envsmith.engines.content import INSPECT_SCRIPT, os_difference, parse_inspection
from envsmith.engines.docker_target import DockerTarget, gpu_arguments
from envsmith.engines.shelf import BaseShelf
from envsmith.engines.wheels import read_wheels
from envsmith.errors import ContentError, EngineError, StorageError
from envsmith.files import read_cache, write_cache
from envsmith.image.context import context_folder, read_host_settings, write_context, write_secrets
from envsmith.image.dockerfile import ImageOptions, labels
from envsmith.model.lock import BaseImage, BuiltWheel, Lock
from envsmith.oci.layout import DockerArchive, layout_digest, to_layout
from envsmith.oci.spec import canonical, canonical_config
from envsmith.progress import Event, EventKind, Progress, silent

if TYPE_CHECKING:
    from envsmith.engines.bases import OsAnswer
    from envsmith.oci.spec import OciImage
    from envsmith.smoke.run import Target


# Seconds for a container that reads every file of an image: 6 GB from a disk of 20 MB/s.
_INSPECT_TIMEOUT = 300
NETWORK_VARIABLE = "ENVSMITH_BUILD_NETWORK"
# Layers on top of the base's up to the one with torch: user and environment, torch.
_TO_TORCH = 2


def image_name(lock: Lock) -> str:
    """``envsmith/cell:<cell id>`` (``…-devel``): the name that a verified image gets."""
    return f"envsmith/cell:{lock.name}"


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into ``StorageError``."""
    from requests.exceptions import RequestException

    try:
        yield
    except RequestException:  # an OSError too, but not the disk's
        raise
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error.strerror or error}") from error


class DockerEngine:
    """See :class:`envsmith.engines.base.Engine` and :class:`envsmith.engines.bases.ImageProvider`."""

    def __init__(self, options: ImageOptions | None = None) -> None:
        self.options = options or ImageOptions()
        self._contents: dict[str, dict[str, str]] = {}

    @property
    def name(self) -> str:
        """The word of ``--engine``."""
        return "docker"

    # -- what is here --------------------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> Any:
        """The SDK's client; ``EngineError`` when there is none. Calls that wait for a build or a pull take minutes."""
        try:
            import docker
        except ImportError as error:
            raise EngineError(
                "the Python package docker is not installed", hint="pip install 'envsmith[docker]'"
            ) from error
        with engine_errors("no Docker engine answers"):
            return docker.from_env(timeout=600)

    def available(self) -> str | None:
        """See the protocol."""
        try:
            import docker
            from docker.errors import DockerException
            from requests.exceptions import RequestException
        except ImportError:
            return "the Python package docker is not installed"
        try:
            client = docker.from_env(timeout=2)
            with contextlib.closing(client):
                client.ping()
                if client.version().get("Os") != "linux":
                    return "the engine runs no Linux containers"
        except (DockerException, RequestException):
            return "no engine answers at its socket"
        if buildkit.any_client() is None:
            return "no docker client is on PATH, with which the smoke test is started"
        return self._unbuildable(client.api.base_url)

    @staticmethod
    def _unbuildable(address: str) -> str | None:
        """One sentence when neither BuildKit nor, without it, the engine itself can build here."""
        reasons: tuple[str, ...] = ()
        if not classic.wanted():
            try:
                buildkit.find_client()
            except EngineError as error:
                reasons = (error.message, *error.details)
            else:
                return None
        remote = classic.needs_local(address)
        return "; ".join((*reasons, remote)) if remote else None

    @cached_property
    def shares_steps(self) -> bool:
        """Whether a build takes part in a step that another build has under way, instead of running it too: BuildKit does."""
        if classic.wanted():
            return False
        with contextlib.suppress(EngineError):
            return bool(buildkit.find_client())
        return False

    @cached_property
    def network(self) -> str | None:
        """The network of build steps: ``host`` for an engine without a bridge, else the engine's default; a variable overrides.

        ``EngineError`` for a variable that names none, and when the engine does not answer.
        """
        if named := os.environ.get(NETWORK_VARIABLE):
            if named not in {"host", "none", "default", "bridge"}:
                raise EngineError(f"{NETWORK_VARIABLE}={named!r}", hint="use host, bridge, default or none")
            return named
        with engine_errors("the engine's networks cannot be listed"):
            return None if self.client.networks.list(names=["bridge"], filters={"driver": "bridge"}) else "host"

    @cached_property
    def shelf(self) -> BaseShelf:
        """The base images that this engine has or can get."""
        return BaseShelf(client=self.client, network=self.network)

    def pythons(self) -> tuple[str, ...] | None:
        """See the protocol."""
        return self.shelf.pythons()

    def has_base(self, base: BaseImage) -> bool:
        """Whether a build can start from exactly this base."""
        return self.shelf.has(base)

    def has_image(self, image: str) -> bool:
        """Whether an image is here by its id."""
        return self.shelf.has_image(image)

    def base_for(self, python: str, wanted: str | None, *, progress: Progress) -> BaseImage:
        """See :class:`envsmith.engines.bases.ImageProvider`."""
        return self.shelf.base_for(python, wanted, progress=progress)

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """See :class:`envsmith.engines.bases.ImageProvider`."""
        return self.shelf.os_packages(base, install, progress=progress)

    # -- build ---------------------------------------------------------------------------------------------------------

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent, cache: bool = True) -> Built:
        """See the protocol and :class:`envsmith.engines.rebuild.ImageEngine`. ``directory`` is not needed: the engine keeps finished layers itself."""
        del directory
        if lock.base is None:
            raise EngineError(
                f"cell {lock.cell.id} has no base image: {lock.image_note or 'none was asked for'}",
                hint="use --engine venv, or --base IMAGE",
            )
        self.shelf.check(lock.base)
        with tempfile.TemporaryDirectory(prefix="envsmith-build-") as scratch:
            image = self._run_build(lock, Path(scratch), progress, cache=cache)
        self.shelf.check(lock.base)
        image = settle(self.client, image, base_layers=self.shelf.layers(lock.base), epoch=self.options.epoch)
        try:
            facts = self._verify(lock, image, progress)
        except BaseException:
            with contextlib.suppress(Exception):
                self.client.images.remove(image, force=True)
            raise
        if cache:
            with engine_errors("the image cannot be tagged"):
                repository, _, tag = image_name(lock).partition(":")
                self.client.images.get(image).tag(repository, tag)
        return Built(
            digest=image,
            kind="image",
            reference=image_name(lock) if cache else image,
            python=f"{self.options.prefix}/bin/python",
            cell=lock.cell.id,
            facts={
                **facts,
                "cuda": lock.cell.components.get("cuda", "cpu"),
                "base layers": str(self.shelf.layers(lock.base)),
            },
        )

    def export(self, built: Built, directory: Path, *, compress: bool = False, progress: Progress = silent) -> OciImage:
        """See :class:`envsmith.engines.rebuild.ImageEngine`. Needs as much free disk as two times the image while it runs."""
        with self._saved(built, directory.parent, progress) as archive:
            return to_layout(
                archive,
                directory,
                base_layers=int(built.facts["base layers"]),
                epoch=self.options.epoch,
                compress=compress,
                source=built.digest,
                progress=progress,
            )

    def manifest_digest(
        self, built: Built, scratch: Path, *, compress: bool = False, progress: Progress = silent
    ) -> str:
        """See :class:`envsmith.engines.rebuild.ImageEngine`. Needs as much free disk as the image while it runs."""
        layers, epoch = int(built.facts["base layers"]), self.options.epoch
        with self._saved(built, scratch, progress) as archive:
            return layout_digest(archive, base_layers=layers, epoch=epoch, compress=compress, progress=progress)

    @contextlib.contextmanager
    def _saved(self, built: Built, folder: Path, progress: Progress) -> Iterator[DockerArchive]:
        """The image as the engine writes it, in a file below ``folder`` for as long as it is read."""
        progress(Event(kind=EventKind.START, step="export", text=built.reference))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".image-", suffix=".tar", dir=folder) as file:
            with engine_errors("the image cannot be saved"), disk_errors(folder):
                for chunk in self.client.images.get(built.digest).save(chunk_size=1 << 20):
                    file.write(chunk)
                file.flush()
            archive = DockerArchive(Path(file.name))
            with contextlib.closing(archive):
                yield archive

    def discard(self, built: Built) -> None:
        """See :class:`envsmith.engines.rebuild.ImageEngine`; an image that has a name stays."""
        with contextlib.suppress(Exception):
            if not self.client.images.get(built.digest).tags:
                self.client.images.remove(built.digest)

    def wheels(self, lock: Lock, *, progress: Progress = silent) -> tuple[BuiltWheel, ...]:
        """See :class:`envsmith.engines.wheels.WheelBuilder`."""
        with tempfile.TemporaryDirectory(prefix="envsmith-wheels-") as scratch:
            out = Path(scratch) / "out"
            self._run_build(lock, Path(scratch), progress, output=out)
            return read_wheels(lock, out)

    def _run_build(
        self, lock: Lock, scratch: Path, progress: Progress, *, cache: bool = True, output: Path | None = None
    ) -> str:
        """The image's id; with ``output`` the lock's wheels are written there instead."""
        with context_folder(scratch) as context:
            return self._run_in(context, lock, scratch, progress, cache=cache, output=output)

    def _run_in(
        self, context: Path, lock: Lock, scratch: Path, progress: Progress, *, cache: bool, output: Path | None
    ) -> str:
        private = scratch / "private"
        private.mkdir(mode=0o700)
        settings = read_host_settings()
        if settings.unreachable:
            text = f"folders of this host are not visible inside the build: {', '.join(settings.unreachable)}"
            progress(Event(kind=EventKind.NOTE, step="build", text=text))
        write_context(lock, context, self.options, builder=output is not None)
        client = self._buildkit(progress)
        if client is None:
            return classic.ClassicBuilder(
                client=self.client,
                context=context,
                secrets=write_secrets(settings, private),
                variables=settings.proxies,
                network=self.network,
                progress=progress,
                cache=cache,
            ).build(output=output)
        return buildkit.build(
            client,
            context,
            network=self.network,
            secrets=write_secrets(settings, private),
            build_args=settings.proxies,
            image_id_file=scratch / "image",
            progress=progress,
            cache=cache,
            output=output,
            target="built" if output else None,
        )

    @staticmethod
    def _buildkit(progress: Progress) -> str | None:
        """The client that runs BuildKit; ``None``, and a note, where a build has to do without."""
        if classic.wanted():
            why = "DOCKER_BUILDKIT asks for it"
        else:
            try:
                return buildkit.find_client()
            except EngineError as error:
                why = "; ".join(error.details) or error.message
        progress(Event(kind=EventKind.NOTE, step="build", text=f"without BuildKit: {why}"))
        return None

    def _verify(self, lock: Lock, image: str, progress: Progress) -> dict[str, str]:
        """The gate: labels, user and content of the image are what the lock says, or ``ContentError``."""
        progress(Event(kind=EventKind.START, step="content"))
        with engine_errors("the image cannot be inspected"):
            attributes = self.client.images.get(image).attrs
        config = attributes.get("Config") or {}
        told = config.get("Labels") or {}
        wrong = [f"label {k}: {told.get(k)!r} instead of {v!r}" for k, v in labels(lock).items() if told.get(k) != v]
        if (config.get("User") or "0").split(":")[0] in {"0", "root"}:
            wrong.append("the image runs as root")
        if wrong:
            raise ContentError(f"cell {lock.cell.id}: the image's labels are not those of its lock", details=wrong)
        shared = (attributes.get("RootFS") or {}).get("Layers") or []
        found = self._installed(image, lock, shared[: self.shelf.layers(lock.base) + _TO_TORCH] if lock.base else [])
        verify_content(lock, found)
        if other := os_difference(lock, found):
            raise ContentError(f"cell {lock.cell.id}: the image's packages are not those of its lock", details=other)
        told = f"{len(lock.pins)} distributions are what the lock says, {found.get('files.checked', '0')} files what they recorded"
        progress(Event(kind=EventKind.DONE, step="content", text=told))
        return {
            "bytes": str(attributes.get("Size", "")),
            "layers": str(len((attributes.get("RootFS") or {}).get("Layers") or [])),
        }

    # -- look inside ---------------------------------------------------------------------------------------------------

    def inspect(self, built: Built) -> dict[str, str]:
        """See the protocol."""
        return self._installed(built.digest)

    def _installed(self, image: str, lock: Lock | None = None, torch_layers: Sequence[str] = ()) -> dict[str, str]:
        """What the image holds, read once: its id is the sha256 of all of it, and the pipeline asks again for its own comparison.

        With a ``lock`` every file is read too; those of a torch layer that was found whole before are not read again (gigabytes).
        """
        if image not in self._contents:
            key = hashlib.sha256(json.dumps([self.options.prefix, *torch_layers]).encode()).hexdigest()
            known = bool(torch_layers) and read_cache("layers", key) == "whole"
            torch = sorted(pin.name for pin in lock.pins if pin.layer == "torch") if lock and known else []
            found = self._read_installed(image, ["files", *torch] if lock else [])
            if torch_layers and found.get("files.checked") and not found.get("files.broken"):
                write_cache("layers", key, "whole")
            self._contents[image] = found
        return dict(self._contents[image])

    def _read_installed(self, image: str, arguments: Sequence[str]) -> dict[str, str]:
        command = [f"{self.options.prefix}/bin/python", "-I", "-c", INSPECT_SCRIPT, *arguments]
        code, output = self.shelf.run(image, command, network="none", timeout=_INSPECT_TIMEOUT)
        if code:
            raise ContentError(f"the image's interpreter failed (status {code})", details=output.splitlines()[-10:])
        return parse_inspection(output)

    def target(self, built: Built) -> Target:
        """See the protocol."""
        gpus = gpu_arguments(self.client) if built.facts.get("cuda", "cpu") != "cpu" else ()
        return DockerTarget(image=built.digest, python=built.python, gpu_arguments=gpus)


# The same layers give the same image id: the configuration that BuildKit wrote is replaced by one without the hour of the build.
#
# An image's id is the sha256 of its configuration. The engine is handed an archive with the new configuration and no layers: those that
# the configuration names are in its store already, so that this takes a fraction of a second whatever the image's size.


def settle(client: Any, image: str, *, base_layers: int, epoch: int) -> str:
    """The id of the image with the settled configuration; ``image`` itself where the engine does not keep a configuration as it is given.

    ``client`` is the SDK's. Since version 29 an engine may keep images in containerd, whose ids are manifests': the digest of the
    exported layout is the same on a rebuild all the same.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with contextlib.suppress(DockerException, RequestException):
        attributes = client.images.get(image).attrs
        config = _settled(attributes, base_layers, epoch)
        blob = canonical(config)
        wanted = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        if wanted == image:
            return image
        for _ in client.api.load_image(_archive(blob, wanted, len(config["rootfs"]["diff_ids"]))):
            pass
        client.images.get(wanted)
        with contextlib.suppress(DockerException, RequestException):
            client.images.remove(image)
        return wanted
    return image


def _settled(attributes: Mapping[str, Any], base_layers: int, epoch: int) -> dict[str, Any]:
    return canonical_config(
        attributes.get("Config") or {},
        architecture=str(attributes.get("Architecture")),
        diff_ids=[str(d) for d in (attributes.get("RootFS") or {}).get("Layers") or []],
        base_layers=base_layers,
        epoch=epoch,
    )


def _archive(blob: bytes, image: str, layers: int) -> bytes:
    """What ``docker load`` reads, without the layers."""
    name = f"{image[7:]}.json"
    manifest = [{"Config": name, "RepoTags": None, "Layers": [f"{n}/layer.tar" for n in range(layers)]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file, data in ((name, blob), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
