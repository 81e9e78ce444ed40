"""Campaigns: which cells are run, where, and how far each climbed the ladder.

``file`` reads what is asked, ``choose`` and ``compose`` turn it into jobs, ``state`` is the folder that survives a kill, ``climb`` runs one
job, ``drive`` keeps an executor busy until nothing is left.
"""
