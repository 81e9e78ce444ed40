"""The smoke test: proves a cell by running collectives and one step of its frameworks in it.

``plan`` and ``cases`` say what is run, ``launch`` how it gets into the cell, ``agent`` runs there, ``supervise`` talks to it, ``verdict`` and
``blame`` judge. Everything but ``agent`` and ``supervise`` is pure.
"""
