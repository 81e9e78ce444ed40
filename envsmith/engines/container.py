"""Engines that make images: a lock becomes an image, its content is compared, and only then it gets its name.

The SDK (package ``docker``) is used for everything it can do. The build itself goes through a command line, which is
the only thing that the engines do differently. Containers that are started here are removed by their own id, whatever
happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envsmith import plain
from envsmith.cache import read_cache, write_cache
from envsmith.engines.base import Built, Engine, verify_content
from envsmith.engines.bases import asked_image
from envsmith.engines.content import INSPECT_SCRIPT, os_difference, parse_inspection, wheel_content
from envsmith.engines.shelf import BaseShelf, engine_errors
from envsmith.errors import BuildError, ContentError, EngineError, storage_error
from envsmith.files import scratch
from envsmith.image.dockerfile import ImageOptions, labels
from envsmith.model.lock import BaseImage, BuiltWheel, Lock
from envsmith.model.version import minor_of, public
from envsmith.oci.layout import DockerArchive, Form, layout_digest, to_layout
from envsmith.oci.spec import canonical, canonical_config
from envsmith.progress import Event, EventKind, Progress, silent

if TYPE_CHECKING:
    from envsmith.engines.bases import OsAnswer
    from envsmith.oci.layout import OciImage


NETWORK_VARIABLE = "ENVSMITH_BUILD_NETWORK"
# Seconds for a container that reads every file of an image: 6 GB from a disk of 20 MB/s.
_INSPECT_TIMEOUT = 300
_WHEELS = "wheels of source distributions"
# Layers on top of the base's up to the one with torch: user and environment, torch.
_TO_TORCH = 2


def image_name(lock: Lock) -> str:
    """Return ``envsmith/cell:<cell id>`` (``…-devel``): the name that a verified image gets."""
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
        raise storage_error(error, directory) from error


class ContainerEngine(Engine):
    """What engines that make images have in common.

    A subclass connects the SDK, runs a build and starts the smoke test's container.
    """

    def __init__(self, options: ImageOptions | None = None) -> None:
        self.options = options or ImageOptions()
        self._contents: dict[str, dict[str, str]] = {}

    @property
    def images(self) -> ContainerEngine:
        """The engine itself."""
        return self

    @cached_property
    def client(self) -> Any:
        """The SDK's client. Raises ``EngineError`` when there is none."""
        raise NotImplementedError

    @cached_property
    def network(self) -> str | None:
        """The network of build steps, ``None`` for the engine's default."""
        raise NotImplementedError

    def run_build(self, lock: Lock, scratch: Path, progress: Progress, *, cache: bool, output: Path | None) -> str:
        """Build the image of ``lock`` in the empty folder ``scratch`` and return its id, without tagging it.

        With ``output`` the lock's wheels are written there instead. Without ``cache`` no finished step is taken.
        """
        raise NotImplementedError

    # -- bases ---------------------------------------------------------------------------------------------------------

    @cached_property
    def shelf(self) -> BaseShelf:
        """The base images that this engine has or can get."""
        return BaseShelf(client=self.client, network=self.network)

    def pythons(self, base: str | None = None) -> tuple[str, ...] | None:
        """Return the minors of the bases that can be had, or of ``base``."""
        return self.shelf.pythons(base)

    def has_base(self, base: BaseImage) -> bool:
        """Return whether a build can start from exactly this base."""
        return self.shelf.has(base)

    def has_image(self, image: str) -> bool:
        """Return whether an image is here by its id."""
        return self.shelf.has_image(image)

    def base_for(self, python: str, base: str | None, *, progress: Progress) -> BaseImage:
        """Return the base for a Python minor, or ``base``."""
        return self.shelf.base_for(python, base, progress=progress)

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """Return everything that installing ``install`` on ``base`` would add."""
        return self.shelf.os_packages(base, install, progress=progress)

    def pin_image(self, lock: Lock, base: str | None = None, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with a base that is here or can be pulled, and packages as that base's mirror offers them."""
        return asked_image(lock, self, base, progress=progress)

    def pin_wheels(self, lock: Lock, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with the wheels of its sdists, built in the pinned builder unless they are known.

        From then on the lock names the wheel and its hash too: a second build that gives another fails at the hash.
        """
        sources = {pin.name for pin in lock.pins if pin.sdist and pin.layer != "torch"}
        if lock.base is None or sources == {wheel.name for wheel in lock.wheels}:
            return lock
        wheels = self.wheels(replace(lock, wheels=()), progress=progress)
        names = ", ".join(wheel.filename for wheel in wheels)
        progress(Event(kind=EventKind.NOTE, step=_WHEELS, text=f"{names}: their hashes stand in the lock from now on"))
        return replace(lock, wheels=wheels)

    # -- build ---------------------------------------------------------------------------------------------------------

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent, cache: bool = True) -> Built:
        """Build the image of ``lock``. ``directory`` is not needed: the engine keeps finished layers itself.

        Without ``cache`` every step is run again, and the result takes no name.
        """
        del directory
        if lock.base is None:
            raise EngineError(
                f"cell {lock.cell.id} has no base image: {lock.image_note or 'none was asked for'}",
                hint="use --engine venv, or --base IMAGE",
            )
        self.shelf.check(lock.base)
        with scratch() as folder:
            image = self.run_build(lock, folder, progress, cache=cache, output=None)
        self.shelf.check(lock.base)
        base_layers = self.shelf.layers(lock.base)
        image = settle(self.client, image, base_layers=base_layers, epoch=self.options.epoch)
        try:
            facts = self._verify(lock, image, base_layers, progress)
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
            facts={**facts, "cuda": lock.cell.components.get("cuda", "cpu"), "base layers": str(base_layers)},
        )

    def wheels(self, lock: Lock, *, progress: Progress = silent) -> tuple[BuiltWheel, ...]:
        """Build the lock's source distributions. Return one wheel for each, sorted by name."""
        with scratch() as folder:
            out = folder / "out"
            self.run_build(lock, folder, progress, cache=True, output=out)
            return read_wheels(lock, out)

    def _verify(self, lock: Lock, image: str, base_layers: int, progress: Progress) -> dict[str, str]:
        """Raise ``ContentError`` unless labels, user and content of the image are what the lock says."""
        progress(Event(kind=EventKind.START, step="content"))
        with engine_errors("the image cannot be inspected"):
            attributes = self.client.images.get(image).attrs
        config = attributes.get("Config") or {}
        actual = config.get("Labels") or {}
        wrong = [
            f"label {k}: {actual.get(k)!r} instead of {v!r}" for k, v in labels(lock).items() if actual.get(k) != v
        ]
        if (config.get("User") or "0").split(":")[0] in {"0", "root"}:
            wrong.append("the image runs as root")
        if wrong:
            raise ContentError(f"cell {lock.cell.id}: the image's labels are not those of its lock", details=wrong)
        layers = (attributes.get("RootFS") or {}).get("Layers") or []
        installed = self._installed(image, lock, layers[: base_layers + _TO_TORCH])
        verify_content(lock, installed)
        if differences := os_difference(lock, installed):
            raise ContentError(
                f"cell {lock.cell.id}: the image's packages are not those of its lock", details=differences
            )
        text = (
            f"{len(lock.pins)} distributions are what the lock says, "
            f"{installed.get('files.checked', '0')} files what they recorded"
        )
        progress(Event(kind=EventKind.DONE, step="content", text=text))
        return {"bytes": str(attributes.get("Size", "")), "layers": str(len(layers))}

    # -- export --------------------------------------------------------------------------------------------------------

    def export(self, built: Built, directory: Path, *, compress: bool = False, progress: Progress = silent) -> OciImage:
        """Write what was built to ``directory`` as an OCI layout in the canonical form.

        Needs as much free disk as two times the image while it runs.
        """
        with self._saved(built, directory.parent, progress) as archive:
            form = Form(base_layers=int(built.facts["base layers"]), epoch=self.options.epoch, compress=compress)
            return to_layout(archive, directory, form, source=built.digest, progress=progress)

    def manifest_digest(
        self, built: Built, scratch: Path, *, compress: bool = False, progress: Progress = silent
    ) -> str:
        """Return the manifest digest that :meth:`export` would give, without writing a layout.

        ``scratch`` is a folder for files on the way. Needs as much free disk as the image while it runs.
        """
        form = Form(base_layers=int(built.facts["base layers"]), epoch=self.options.epoch, compress=compress)
        with self._saved(built, scratch, progress) as archive:
            return layout_digest(archive, form, progress=progress)

    @contextlib.contextmanager
    def _saved(self, built: Built, folder: Path, progress: Progress) -> Iterator[DockerArchive]:
        """Yield the image as the engine writes it, in a file below ``folder`` for as long as it is read."""
        progress(Event(kind=EventKind.START, step="export", text=built.reference))
        folder.mkdir(parents=True, exist_ok=True)
        with scratch(folder) as staging, (staging / "image.tar").open("w+b") as file:
            with engine_errors("the image cannot be saved"), disk_errors(folder):
                for chunk in self.client.images.get(built.digest).save(chunk_size=1 << 20):
                    file.write(chunk)
                file.flush()
            archive = DockerArchive(Path(file.name))
            with contextlib.closing(archive):
                yield archive

    def discard(self, built: Built) -> None:
        """Remove an image unless it has a name."""
        with contextlib.suppress(Exception):
            if not self.client.images.get(built.digest).tags:
                self.client.images.remove(built.digest)

    # -- look inside ---------------------------------------------------------------------------------------------------

    def inspect(self, built: Built) -> dict[str, str]:
        """Return what the image holds."""
        return self._installed(built.digest)

    def _installed(self, image: str, lock: Lock | None = None, torch_layers: Sequence[str] = ()) -> dict[str, str]:
        """Return what the image holds. It is read once: its id is the sha256 of all of it.

        With a ``lock`` every file is read too. Those of a torch layer that was whole before are not read again
        (gigabytes).
        """
        if image not in self._contents:
            key = hashlib.sha256(json.dumps([self.options.prefix, *torch_layers]).encode()).hexdigest()
            whole = bool(torch_layers) and read_cache("layers", key) == "whole"
            torch = sorted(pin.name for pin in lock.pins if pin.layer == "torch") if lock and whole else []
            installed = self._read_installed(image, ["files", *torch] if lock else [])
            if torch_layers and installed.get("files.checked") and not installed.get("files.broken"):
                write_cache("layers", key, "whole")
            self._contents[image] = installed
        return dict(self._contents[image])

    def _read_installed(self, image: str, arguments: Sequence[str]) -> dict[str, str]:
        command = [f"{self.options.prefix}/bin/python", "-I", "-c", INSPECT_SCRIPT, *arguments]
        code, output = self.shelf.run(image, command, network="none", timeout=_INSPECT_TIMEOUT)
        if code:
            raise ContentError(f"the image's interpreter failed (status {code})", details=output.splitlines()[-10:])
        return parse_inspection(output)


# The same layers give the same image id: the configuration that BuildKit wrote is replaced by one without the hour of
# the build.
#
# An image's id is the sha256 of its configuration. The engine is handed an archive with the new configuration and no
# layers: those that the configuration names are in its store already, so that this takes a fraction of a second
# whatever the image's size.


def settle(client: Any, image: str, *, base_layers: int, epoch: int) -> str:
    """Return the id of the image with the settled configuration.

    It is ``image`` itself where the engine does not keep a configuration as it is given: since version 29 an engine may
    keep images in containerd, whose ids are manifests'. The digest of the exported layout is the same on a rebuild all
    the same.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with contextlib.suppress(DockerException, RequestException):
        attributes = client.images.get(image).attrs
        config = _settled(attributes, base_layers, epoch)
        blob = canonical(config)
        settled_id = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        if settled_id == image:
            return image
        for _ in client.api.load_image(_archive(blob, settled_id, len(config["rootfs"]["diff_ids"]))):
            pass
        client.images.get(settled_id)
        with contextlib.suppress(DockerException, RequestException):
            client.images.remove(image)
        return settled_id
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
    """Return what ``docker load`` reads, without the layers."""
    name = f"{image[7:]}.json"
    manifest = [{"Config": name, "RepoTags": None, "Layers": [f"{n}/layer.tar" for n in range(layers)]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file, data in ((name, blob), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


# -- wheels: what the pinned builder made of source distributions, on the cell's own base, torch and packages ----------


def read_wheels(lock: Lock, folder: Path) -> tuple[BuiltWheel, ...]:
    """Hash what a builder wrote to ``folder``.

    Raises ``BuildError`` unless it is one wheel of the locked version for every sdist.
    """
    versions = {pin.name: pin.version for pin in lock.pins if pin.sdist and pin.layer != "torch"}
    archives = {source.name for source in lock.compiled if source.archive}
    wheels: dict[str, BuiltWheel] = {}
    problems = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            problems.append(f"{path.name[:120]}: not a wheel's name")
            continue
        if name not in versions or name in wheels:
            problems.append(f"{path.name}: nothing of the lock is built to it")
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            content = wheel_content(path)
        except ContentError as error:
            problems.append(error.message)
            continue
        wheels[name] = BuiltWheel(name=name, filename=plain.file_name(path.name), sha256=digest, content=content)
        if public(str(version)) != public(versions[name]):
            problems.append(f"{path.name}: the lock says {versions[name]}")
        problems += _unmet(path, lock) if name in archives else []
    problems += [f"{name} {versions[name]}: no wheel came out" for name in sorted(set(versions) - set(wheels))]
    if problems:
        raise BuildError(
            f"{_WHEELS} failed",
            details=problems,
            hint="the builder's uv kept no wheel, or other ones; report it with the lock",
        )
    return tuple(wheels[name] for name in sorted(wheels))


def _unmet(path: Path, lock: Lock) -> list[str]:
    """Return what a wheel requires and the lock lacks: a user's archive may compute its requirements late."""
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            fields = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
        required = [Requirement(str(text)) for text in fields.get_all("Requires-Dist") or ()]
    except (zipfile.BadZipFile, zlib.error, OSError, StopIteration, ValueError) as error:
        return [f"{path.name}: its metadata cannot be read: {str(error)[:100]}"]
    minor = minor_of(lock.python_version)
    environment = {"python_version": minor, "python_full_version": f"{minor}.0", "sys_platform": "linux", "extra": ""}
    environment |= {"platform_machine": lock.cell.platform.machine, "platform_system": "Linux", "os_name": "posix"}
    unmet = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        pin = lock.pin(canonicalize_name(requirement.name))
        if pin is None:
            unmet.append(
                f"{path.name}: requires {requirement}, which the lock does not have: "
                "ask for it by --with, or state it in the archive"
            )
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            unmet.append(f"{path.name}: requires {requirement}, the lock has {pin.version}")
    return unmet
