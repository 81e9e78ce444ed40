"""The helpers of this folder (`records_help`, `fake_worker`) can be imported by its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
