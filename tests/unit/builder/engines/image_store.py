"""Where an engine keeps its images, in memory: the classic store, podman's, or containerd's, which names and packs them in other ways."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import docker
from tars import tar_bytes

from envsmith.builder.engines.container import ContainerEngine
from envsmith.builder.engines.shelf import BaseShelf
from envsmith.builder.image.dockerfile import labels
from envsmith.net.oci.layout import open_files
from envsmith.net.oci.store import load_manifest


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"opt/{name}")
            info.size, info.mtime = len(text), 1 << 31  # later than an epoch: a canonical layer is another
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Image:
    def __init__(self, store, identity, config, layers):
        self.store, self.id, self.config, self.layers = store, identity, config, layers

    @property
    def tags(self):
        return sorted(tag for tag, image in self.store.tags.items() if image is self)

    @property
    def attrs(self):
        whole = all(layer is not None for layer in self.layers)
        ids = self.config["rootfs"]["diff_ids"] if whole else []
        return {"Config": self.config["config"] if whole else {}, "RootFS": {"Layers": ids}, "Architecture": "amd64"}

    def tag(self, repository, tag):
        self.store.tags[f"{repository}:{tag}"] = self

    def save(self, chunk_size):
        pack = gzip.compress if self.store.kind == "containerd" else bytes
        files = {f"{n}/layer.tar": pack(data) for n, data in enumerate(self.layers)}
        row = {"Config": "c.json", "Layers": list(files)}
        files = {"c.json": json.dumps(self.config).encode(), **files, "manifest.json": json.dumps([row]).encode()}
        data = tar_bytes(files.items())
        for at in range(0, len(data), 1000):
            if self.store.breaks == "save":
                raise self.store.error
            yield data[at : at + 1000]


class Store:
    """``kind`` is ``classic``, ``containerd`` or ``podman``. ``breaks`` is the step at which ``error`` is raised."""

    def __init__(self, kind, folder, *, breaks="", error=None):
        self.kind, self.folder, self.breaks, self.error = kind, folder, breaks, error
        self.known, self.tags, self.contents, self.sent, self.steps = {}, {}, {}, [], []
        self.images = self.api = self
        self.base_url = "http+docker://localhost"

    def info(self):
        return {"DockerRootDir": str(self.folder)}

    def get(self, name):
        image = self.tags.get(name) or self.known.get(name)
        if image is None:
            raise docker.errors.ImageNotFound(f"no such image: {name}")
        return image

    def list(self, **_options):
        return list(self.known.values())

    def remove(self, name):
        del self.known[self.get(name).id]

    def put(self, config, layers):
        """Keep an image as the engine's own builder makes it."""
        identity = digest(json.dumps([self.kind, config]).encode())
        self.known[identity] = Image(self, identity, config, layers)
        return self.known[identity]

    def df(self):
        return {"BuildCache": [{"ID": step, "CreatedAt": f"{n:04}"} for n, step in enumerate(self.steps)]}

    def prune_builds(self, filters, **_options):
        self.steps.remove(filters["id"])

    def load_image(self, pieces):
        if self.breaks == "load":
            raise self.error
        path = self.folder / "load.tar"
        path.write_bytes(b"".join(pieces))
        with tarfile.open(path) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive}
        self.sent.append(sum(len(data) for data in files.values()))
        (row,) = json.loads(files["manifest.json"])
        config = json.loads(files[row["Config"]])
        layers = []
        for number, name in enumerate(row["Layers"]):
            chain = tuple(config["rootfs"]["diff_ids"][: number + 1])
            here = [
                i.layers[number]
                for i in self.known.values()
                if tuple(i.config["rootfs"]["diff_ids"][: number + 1]) == chain
            ]
            kept = {"classic": here[:1], "containerd": [self.contents.get(name)]}.get(self.kind) or [None]
            data = files.get(name) or kept[0]
            if data is None and self.kind != "containerd":
                yield {"error": f"open {name}: no such file or directory"}
                return
            if data is not None:
                self.contents[name] = data
            layers.append(data)
        identity = digest(files[row["Config"]])
        if self.kind == "containerd":
            with open_files(path) as store:
                identity = load_manifest(store, store.entries[0].digest, "image").digest
        self.known[identity] = Image(self, identity, config, layers)
        yield {"stream": f"Loaded image ID: {identity}"}


class StoreEngine(ContainerEngine):
    """An engine whose builder makes the same files each time, with another hour in the configuration."""

    name = "pretended"

    def __init__(self, kind, folder, lock, **more):
        super().__init__()
        folder.mkdir(exist_ok=True)
        self.lock, self.hours, self.checked = lock, iter(range(100)), []
        store = Store(kind, folder, **more)
        base = store.put({"config": {"Env": ["A=1"]}, "rootfs": {"diff_ids": [digest(tar(base="b"))]}}, [tar(base="b")])
        base.tag("mine", "1")
        self.__dict__.update(client=store, network=None, shelf=BaseShelf(client=store, network=None))

    def run_build(self, lock, scratch, progress, *, cache, output):
        hour = next(self.hours)
        layers = [tar(base="b"), tar(torch="t" * 50_000), tar(framework=lock.digest)]
        config = {"Labels": labels(lock), "User": "10001"}
        ids = [digest(layer) for layer in layers]
        self.client.steps += [] if cache else [f"step-{hour}", f"step-{hour}-b"]
        return self.client.put(
            {"architecture": "amd64", "created": str(hour), "config": config, "rootfs": {"diff_ids": ids}}, layers
        ).id

    def _read_installed(self, image, arguments):
        self.checked.append(image)
        found = {pin.name: pin.version for pin in self.lock.pins} | {
            "python": f"{self.lock.cell.components['python']}.1"
        }
        return found | {
            "torch.version": self.lock.cell.components["torch"],
            "cuda.version": self.lock.cell.components["cuda"],
        }


def files_below(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.name != "load.tar")
    return []
