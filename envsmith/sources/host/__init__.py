"""The machine at hand -> facts: everything a diagnosis needs, read from files and a few short commands; torch is not imported.

Under one second: distributions are read by their ``METADATA`` heads, libraries found by looking into the folders that the loader and the wheels use,
the driver through ``/proc`` and NVML. ``deep`` starts the environment's Python and imports what is installed.
"""

from __future__ import annotations

from envsmith.sources.host.collect import WATCHED, collect, interpreter_of

__all__ = ["WATCHED", "collect", "interpreter_of"]
