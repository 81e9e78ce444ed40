"""Draw four sessions as a terminal shows them, in colour and at its width: ``docs/page/terminal-*.svg``.

    python tools/terminal_screenshots.py

Each command runs on a terminal of its own (Linux), and rich draws what it printed.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text
from sessions import LOG

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
SESSIONS = {
    "check": "envsmith check deepspeed==0.14.2 torch==2.4.1",
    "solve": "envsmith solve --framework megatron-core --gpu b200 --torch 2.6",
    "explain": "envsmith explain deepspeed-elastic-socket",
    "doctor": "envsmith doctor --from train.log",
}


def printed(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal of :data:`COLUMNS` columns."""
    words = [sys.executable, "-m", "envsmith", *shlex.split(command)[1:]]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "CI", "NO_COLOR"}}
        os.execve(words[0], words, {**environment, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)})  # noqa: S606
    text = io.BytesIO()
    try:
        while piece := os.read(terminal, 1 << 16):
            text.write(piece)
    except OSError:  # the other end has closed
        pass
    os.waitpid(process, 0)
    return text.getvalue().decode().replace("\r\n", "\n")


def main() -> None:
    """Draw every session."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.log").write_text(LOG, encoding="utf-8")
        for name, command in SESSIONS.items():
            console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(printed(command, Path(folder))))
            path = ROOT / "docs" / "page" / f"terminal-{name}.svg"
            picture = console.export_svg(title="envsmith", unique_id=f"terminal-{name}")
            # No font from elsewhere: the reader's own monospaced one is wide enough.
            picture = re.sub(r"\s*(@font-face \{.*?\}|<!-- .*? -->)", "", picture, flags=re.DOTALL)
            path.write_text(picture, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
