"""The smoke test: proves a cell by running collectives and one step of its frameworks in it.

``plan`` and ``cases`` say what is run, ``agent`` runs in the cell, ``bundle`` makes one text of it, ``run`` sends it
there and hears its events, ``verdict`` and ``blame`` judge.
"""
