"""What tests of the arrow ask for, and the engine that builds it in an instant."""

from __future__ import annotations

from envsmith.builder.engines.base import Built, Engine
from envsmith.builder.options import Options
from envsmith.errors import BuildError
from envsmith.model.cell import Request


class FakeEngine(Engine):
    name = "venv"

    images = None

    def __init__(self, *, wrong=False, broken=False):
        self.wrong, self.broken, self.builds = wrong, broken, 0

    def available(self):
        return None

    def pythons(self, base=None):
        return ("3.11",)

    def build(self, lock, directory, *, progress):
        self.builds += 1
        self.lock = lock
        if self.broken:
            raise BuildError("torch layer failed", details=["no space"])
        return Built(
            digest="sha256:" + "1" * 64, kind="venv", reference=str(directory), python=str(directory / "python")
        )

    def inspect(self, built):
        found = {pin.name: pin.version for pin in self.lock.pins} | {"python": "3.11.7"}
        return found | ({"torch": "0.1"} if self.wrong else {})

    def target(self, built):
        return object()


def options_in(folder, **more):
    return Options(
        request=Request(frameworks=["deepspeed"]), request_text="--framework deepspeed", output=folder / "out", **more
    )
