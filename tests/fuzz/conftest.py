"""The readers are a program's module beside the tests, for atheris starts it as a script."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
