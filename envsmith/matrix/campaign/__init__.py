"""Campaigns: many cells run as far up the evidence ladder as they come, resumable at any moment.

``plan`` turns a campaign file into jobs, ``climb`` runs one job, ``executors`` are the places where jobs run, ``drive``
keeps an executor busy until every job has its record, and holds the folder that survives a kill.
"""
