"""Campaigns: many cells run as far up the evidence ladder as they come, resumable at any moment.

``selection`` turns a campaign file into jobs, ``composer`` one combination into one, and ``newest`` the frameworks that
are followed. ``climb`` runs one job. ``executors`` are the places where jobs run (``local``, ``slurm``), ``drive``
keeps one busy until every job has its record, and ``state`` is the folder that survives a kill.
"""
