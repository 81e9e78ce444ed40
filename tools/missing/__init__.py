"""Which names of its dependencies a release uses, and which releases of those do not have them: what ``tools/missing_names.py`` is made of."""
