"""Import modules of a repository, each in a process of its own. Runs inside the environment; standard library only.

python import_modules.py ROOT < paths        # prints a line of JSON for each
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import json
import os
import pathlib
import signal
import sys
import traceback

SECONDS = 60  # of CPU, so that a busy machine cuts nothing off
WAIT = 300
OF_ENVIRONMENT = (ImportError, AttributeError, TypeError, NameError, SyntaxError)
HEAVY = [
    "torch",
    "transformers",
    "numpy",
    "accelerate",
    "datasets",
    "peft",
    "diffusers",
    "deepspeed",
    "pandas",
    "gradio",
    "scipy",
    "sklearn",
    "matplotlib.pyplot",
    "ray",
    "wandb",
    "timm",
    "torchvision",
    "pytorch_lightning",
    "lightning",
    "evaluate",
    "trl",
    "fastapi",
    "openai",
    "cv2",
    "skimage",
    "nltk",
]


def main() -> None:
    root = sys.argv[1]
    for name in HEAVY:  # once for all children
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    for path in sys.stdin.read().split("\n"):
        if path:
            print(json.dumps({"module": path, **attempt(root, path)}), flush=True)


def attempt(root: str, path: str) -> dict[str, str]:
    """What the import of one file says, from a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(within(root, path)).encode()[:60000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"of": "other", "error": "the process ended"}


def within(root: str, path: str) -> dict[str, str]:
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WAIT)
    out = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(out, stream)
    sys.argv = [path]
    file = pathlib.Path(root, path)
    beside = [] if (file.parent / "__init__.py").exists() else [str(file.parent)]
    sys.path[:0] = [*beside, root, str(pathlib.Path(root, "src"))]
    builtins.input = lambda *_: ""
    try:
        load(file, path)
    except OF_ENVIRONMENT as error:
        return {"of": "environment", "error": said(error)}
    except OSError as error:
        kind = "environment" if ".so" in str(error) or "undefined symbol" in str(error) else "other"
        return {"of": kind, "error": said(error)}
    except BaseException as error:  # noqa: BLE001 - whatever a module does when it is imported
        return {"of": "other", "error": said(error)}
    return {"of": "none", "error": ""}


def load(file: pathlib.Path, path: str) -> None:
    """Import a module of a package by its name, and run a script as a file.

    A folder of scripts has no ``__init__.py``: a package of its name that is installed would come before it.
    """
    name = path[:-3].replace("/", ".").removesuffix(".__init__").removeprefix("src.")
    if (file.parent / "__init__.py").exists():
        importlib.import_module(name)
        return
    spec = importlib.util.spec_from_file_location("module", file)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        importlib.import_module(name)


def said(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:200]} ({pathlib.Path(frame.filename).name}:{frame.lineno})"


if __name__ == "__main__":
    main()
