"""Engines that make images: a lock becomes an image, its content is compared, and only then it gets its name.

The SDK (package ``docker``) is used for everything it can do. The build itself goes through a command line, which is
the only thing that the engines do differently. Containers that are started here are removed by their own id, whatever
happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envsmith.base.cache import read_cache, write_cache
from envsmith.base.files import scratch
from envsmith.base.progress import EventKind, Progress, ProgressEvent, announced, silent
from envsmith.builder.engines.base import Built, Engine, verify_content
from envsmith.builder.engines.bases import asked_image
from envsmith.builder.engines.content import INSPECT_SCRIPT, os_difference, parse_inspection, wheel_content
from envsmith.builder.engines.shelf import BaseShelf, engine_errors, refused
from envsmith.builder.engines.space import Moment, refuse_without_room
from envsmith.builder.image.dockerfile import ImageOptions, labels
from envsmith.errors import BuildError, ContentError, EngineError, storage_error
from envsmith.lock.index.markers import holds
from envsmith.model import plain
from envsmith.model.lock import BaseImage, BuiltWheel, Lock
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of, public
from envsmith.net.oci.canonical import Form, repack, to_layout
from envsmith.net.oci.saved import loadable, read_saved

if TYPE_CHECKING:
    from envsmith.net.oci.image import OciImage


NETWORK_VARIABLE = "ENVSMITH_BUILD_NETWORK"
# Seconds for a container that reads every file of an image: 6 GB from a disk of 20 MB/s.
_INSPECT_TIMEOUT = 300
_WHEELS = "wheels of source distributions"
# Layers on top of the base's (one, where it is made of packages) up to torch: user and environment, torch.
_TO_TORCH = 2
# What images with one torch layer have in common.
_TORCH_LABELS = ("io.envsmith.torch", "io.envsmith.cuda", "io.envsmith.python", "org.opencontainers.image.base.digest")


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

    # How often an image lies on the engine's disk at the fullest moment of a build.
    copies_built = 1
    # The same beside how often it lies on the disk of its layout: while it is written, and while it is loaded back.
    # Docker 20.10 writes what it saves, and what it loads, to its own disk first. Measured on 2026-11-22 with
    # Megatron-core on torch 2.15, an image of 5.7 GB: 11.9 and 10.4 GB, then 17.5 and 5.7.
    copies_exported: tuple[tuple[int, int], ...] = ((2, 2), (3, 1))

    def __init__(self, options: ImageOptions | None = None) -> None:
        self.options = options or ImageOptions()
        self._contents: dict[str, dict[str, str]] = {}

    @property
    def images(self) -> ContainerEngine:
        """Return the engine itself."""
        return self

    @cached_property
    def client(self) -> Any:
        """Return the SDK's client. Raises ``EngineError`` when there is none."""
        raise NotImplementedError

    @cached_property
    def network(self) -> str | None:
        """Return the network of build steps, ``None`` for the engine's default."""
        raise NotImplementedError

    def run_build(self, lock: Lock, scratch: Path, progress: Progress, *, cache: bool, output: Path | None) -> str:
        """Build the image of ``lock`` in the empty folder ``scratch`` and return its id, without tagging it.

        With ``output`` the lock's wheels are written there instead. Without ``cache`` no finished step is taken.
        """
        raise NotImplementedError

    # -- bases ---------------------------------------------------------------------------------------------------------

    @cached_property
    def shelf(self) -> BaseShelf:
        """Return the base images that this engine has or can get."""
        return BaseShelf(client=self.client, network=self.network)

    def pythons(self, base: str | None = None) -> tuple[str, ...] | None:
        """Return the minors of the bases that can be had, or of ``base``."""
        return self.shelf.pythons(base)

    def has_image(self, digest: str) -> bool:
        """Return whether an image is here by its identity, or by the engine's own id."""
        return self.shelf.find(digest) is not None

    def pin_image(self, lock: Lock, base: str | None = None, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with a base that is here or can be pulled, and packages as that base's mirror offers them."""
        return asked_image(lock, self.shelf, base, progress=progress)

    def pin_wheels(self, lock: Lock, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with the wheels of its sdists, built in the pinned builder unless they are known.

        From then on the lock names the wheel and its hash too: a second build that gives another fails at the hash.
        """
        sources = {pin.name for pin in lock.pins if pin.sdist and pin.layer != "torch"}
        if lock.base is None or sources == {wheel.name for wheel in lock.wheels}:
            return lock
        wheels = self.wheels(replace(lock, wheels=()), progress=progress)
        names = ", ".join(wheel.filename for wheel in wheels)
        progress(
            ProgressEvent(
                kind=EventKind.NOTE, step=_WHEELS, text=f"{names}: their hashes stand in the lock from now on"
            )
        )
        return replace(lock, wheels=wheels)

    # -- build ---------------------------------------------------------------------------------------------------------

    def build(
        self,
        lock: Lock,
        directory: Path,
        *,
        layout: Path | None = None,
        packing: str = "none",
        progress: Progress = silent,
    ) -> Built:
        """Build the image of ``lock``. ``directory`` is not needed: the engine keeps finished layers itself.

        With ``layout`` the image is written there in the canonical form and loaded back: from then on it is that one
        which is checked, tested and published. Its layers are packed by ``packing`` at the end.
        """
        del directory
        self._refuse_without_room(lock, layout)
        raw = image = self._raw(lock, progress, cache=True)
        digest, names = raw, {raw}
        try:
            if layout is not None:
                written = self._export(lock, raw, layout, progress)
                names |= {written.identity, written.digest}
                self._drop(raw)  # gigabytes, which podman keeps apart from those of the canonical image
                with announced(progress, "load", written.identity[:19]):
                    image, digest = self._load(written, layout), written.identity
            facts = self._verify(lock, image, self.shelf.layers(cast("BaseImage", lock.base)), progress)
        except BaseException:
            for each in names:
                self._drop(each)
            raise
        with engine_errors("name the image"):
            repository, _, tag = image_name(lock).partition(":")
            self.client.images.get(image).tag(repository, tag)
        if layout is not None and packing != "none":
            repack(written, layout, packing, progress=progress)
        return Built(
            digest=digest,
            kind="image",
            reference=image_name(lock),
            python=f"{self.options.prefix}/bin/python",
            cell=lock.cell.id,
            image=image,
            facts={**facts, "cuda": lock.cell.components.get("cuda", "cpu")},
        )

    def build_again(self, lock: Lock, layout: Path, *, progress: Progress = silent) -> OciImage:
        """Run every step of ``lock`` again and write the image to ``layout``. Nothing of it stays in the engine."""
        self._refuse_without_room(lock, layout)
        earlier, raw = self._cached_steps(), ""
        try:
            raw = self._raw(lock, progress, cache=False)
            return self._export(lock, raw, layout, progress)
        finally:
            self._drop(raw)
            for step in self._cached_steps():
                if step not in earlier:
                    with contextlib.suppress(Exception):
                        self.client.api.prune_builds(filters={"id": step}, all=True)

    def _cached_steps(self) -> list[str]:
        """Return the ids of the steps that the builder keeps beside its images, the last one first."""
        with contextlib.suppress(Exception):
            steps = self.client.df().get("BuildCache") or []
            return [str(step["ID"]) for step in sorted(steps, key=lambda each: each["CreatedAt"], reverse=True)]
        return []

    def _refuse_without_room(self, lock: Lock, layout: Path | None) -> None:
        """Raise ``StorageError`` before the first step where the engine's disk, or a layout's, is too small.

        An engine that is elsewhere is not asked.
        """
        with engine_errors("reach the engine"):
            root = Path(str(self.client.info().get("DockerRootDir") or "/nowhere"))
            here = [(image.attrs.get("Config") or {}).get("Labels") or {} for image in self.client.images.list()]
        mine = labels(lock)
        is_here = any(all(each.get(key) == mine.get(key) for key in _TORCH_LABELS) for each in here)
        pins = [pin for pin in lock.pins if not (is_here and pin.layer == "torch")]
        is_local = self.client.api.base_url.startswith("http+docker") and root.is_dir()
        moments: list[Moment] = [{root: pins * self.copies_built}]
        if layout is not None:
            moments += [
                {root: pins * inside, layout.parent: lock.pins * outside} for inside, outside in self.copies_exported
            ]
        if not is_local:
            moments = [{place: each for place, each in moment.items() if place != root} for moment in moments]
        hint = "Free space there (docker system df, docker builder prune), or choose another --output."
        refuse_without_room(lock.cell.id, moments, hint=hint)

    def _raw(self, lock: Lock, progress: Progress, *, cache: bool) -> str:
        """Build the image as the engine makes it and return the engine's id of it."""
        if lock.base is None:
            raise EngineError(
                f"Cannot build an image of {lock.cell.id}: its lock names no base ({lock.image_note or 'none was asked for'}).",
                hint="Lock the cell again with --base IMAGE or --base packages, or use --engine venv.",
            )
        self.shelf.prepare(lock.base, progress)
        with scratch() as folder:
            image = self.run_build(lock, folder, progress, cache=cache, output=None)
        self.shelf.check(lock.base)
        return image

    def _export(self, lock: Lock, image: str, layout: Path, progress: Progress) -> OciImage:
        """Write an image of the engine to ``layout`` in the canonical form.

        Needs as much free disk as the image and its largest layer while it runs.
        """
        progress(ProgressEvent(kind=EventKind.START, step="export", text=image[:19]))
        form = Form(base_layers=self.shelf.layers(cast("BaseImage", lock.base)), epoch=self.options.epoch)
        layout.parent.mkdir(parents=True, exist_ok=True)
        with scratch(layout.parent) as staging:
            with engine_errors("save the image"), disk_errors(layout.parent):
                saved = read_saved(self.client.images.get(image).save(chunk_size=1 << 20), staging)
            return to_layout(saved, layout, form, progress=progress)

    def _load(self, image: OciImage, layout: Path) -> str:
        """Hand the image of a layout to the engine and return the engine's id of it.

        Layers that the engine has already are not sent. Where it has them in another form (containerd keeps what was
        packed), or wants all of them (podman), they are sent after all.
        """
        identity = self._whole(image)
        if identity is None and (present := self._layers_here(image.diff_ids)):
            with contextlib.suppress(EngineError):
                self._send(image, layout, present)
            identity = self._whole(image)
        if identity is None:
            self._send(image, layout, 0)
            identity = self._whole(image)
        if identity is None:
            raise EngineError(
                f"Cannot load {image.identity[:19]} into the engine: it does not describe the image as it was sent.",
                hint="Report it with the engine's version (docker version).",
            )
        return identity

    def _send(self, image: OciImage, layout: Path, present: int) -> None:
        """Send the image of ``layout`` without its first ``present`` layers."""
        del layout
        with engine_errors("load the image into the engine"):
            for line in self.client.api.load_image(loadable(image, without=present)):
                if "error" in line:
                    raise refused(f"Cannot load the image into the engine: {str(line['error'])[:300]}.")

    def _layers_here(self, diff_ids: Sequence[str]) -> int:
        """Return how many of these layers, from the lowest, the engine has."""
        with engine_errors("list the images of the engine"):
            chains = [_layers_of(image.attrs) for image in self.client.images.list(all=True)]
        return max((_alike(diff_ids, chain) for chain in chains), default=0)

    def _whole(self, image: OciImage) -> str | None:
        """Return the engine's id of a loaded image: of its configuration, or of its manifest (containerd)."""
        from docker.errors import DockerException

        for name in (image.identity, image.digest):
            with contextlib.suppress(DockerException):
                loaded = self.client.images.get(name)
                if _layers_of(loaded.attrs) == list(image.diff_ids):
                    return str(loaded.id)
        return None

    def _drop(self, image: str) -> None:
        """Remove an image unless it has a name."""
        with contextlib.suppress(Exception):
            if not self.client.images.get(image).tags:
                self.client.images.remove(image)

    def wheels(self, lock: Lock, *, progress: Progress = silent) -> tuple[BuiltWheel, ...]:
        """Build the lock's source distributions. Return one wheel for each, sorted by name."""
        with scratch() as folder:
            out = folder / "out"
            self.run_build(lock, folder, progress, cache=True, output=out)
            return read_wheels(lock, out)

    def _verify(self, lock: Lock, image: str, base_layers: int, progress: Progress) -> dict[str, str]:
        """Raise ``ContentError`` unless labels, user and content of the image are what the lock says."""
        progress(ProgressEvent(kind=EventKind.START, step="content"))
        with engine_errors("inspect the image"):
            attributes = self.client.images.get(image).attrs
        config = attributes.get("Config") or {}
        actual = config.get("Labels") or {}
        wrong = [
            f"label {k}: {actual.get(k)!r} instead of {v!r}" for k, v in labels(lock).items() if actual.get(k) != v
        ]
        if (config.get("User") or "0").split(":")[0] in {"0", "root"}:
            wrong.append("the image runs as root")
        if wrong:
            raise ContentError(
                f"Cannot accept the image of {lock.cell.id}: its labels are not those of its lock.", details=wrong
            )
        layers = _layers_of(attributes)
        installed = self._installed(image, lock, layers[: (base_layers or 1) + _TO_TORCH])
        verify_content(lock, installed)
        if differences := os_difference(lock, installed):
            raise ContentError(
                f"Cannot accept the image of {lock.cell.id}: its packages are not those of its lock.",
                details=differences,
            )
        text = (
            f"{len(lock.pins)} distributions are what the lock says, "
            f"{installed.get('files.checked', '0')} files what they recorded"
        )
        progress(ProgressEvent(kind=EventKind.DONE, step="content", text=text))
        return {"bytes": str(attributes.get("Size", "")), "layers": str(len(layers))}

    # -- look inside ---------------------------------------------------------------------------------------------------

    def inspect(self, built: Built) -> dict[str, str]:
        """Return what the image holds."""
        return self._installed(built.image)

    def _installed(self, image: str, lock: Lock | None = None, torch_layers: Sequence[str] = ()) -> dict[str, str]:
        """Return what the image holds. It is read once: its id is the sha256 of all of it.

        With a ``lock`` every file is read too. Those of a torch layer that was whole before are not read again
        (gigabytes).
        """
        if image not in self._contents:
            key = hashlib.sha256(json.dumps([self.options.prefix, *torch_layers]).encode()).hexdigest()
            is_intact = bool(torch_layers) and read_cache("layers", key) == "whole"
            torch = sorted(pin.name for pin in lock.pins if pin.layer == "torch") if lock and is_intact else []
            installed = self._read_installed(image, ["files", *torch] if lock else [])
            is_whole = "files.checked" in installed and not {"files.broken", "files.unlike"} & installed.keys()
            if torch_layers and is_whole:
                write_cache("layers", key, "whole")
            self._contents[image] = installed
        return dict(self._contents[image])

    def _read_installed(self, image: str, arguments: Sequence[str]) -> dict[str, str]:
        command = [f"{self.options.prefix}/bin/python", "-I", "-c", INSPECT_SCRIPT, *arguments]
        code, output = self.shelf.run(image, command, network="none", timeout=_INSPECT_TIMEOUT)
        if code:
            raise ContentError(
                f"Cannot look into the image: its interpreter failed (status {code}).",
                details=output.splitlines()[-10:],
            )
        return parse_inspection(output)


def _alike(one: Sequence[str], two: Sequence[str]) -> int:
    """Return how many items both begin with."""
    return next(
        (n for n, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
    )


def _layers_of(attributes: Mapping[str, Any]) -> list[str]:
    return [str(digest) for digest in (attributes.get("RootFS") or {}).get("Layers") or []]


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
            f"Cannot finish {_WHEELS}: the wheels are not those of the lock.",
            details=problems,
            hint="Report it with the lock: the builder's uv kept no wheel, or other ones.",
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
    unmet = []
    for requirement in required:
        if not holds(requirement.marker, minor, lock.cell.platform):
            continue
        pin = lock.pin(normal_name(requirement.name))
        if pin is None:
            unmet.append(
                f"{path.name}: requires {requirement}, which the lock does not have: "
                "ask for it by --with, or state it in the archive"
            )
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            unmet.append(f"{path.name}: requires {requirement}, the lock has {pin.version}")
    return unmet
