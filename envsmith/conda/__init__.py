"""The Conda lock of a cell: solved by rattler, proved equal to the pip lock, written for every tool.

>>> lock = lock_conda(cell, pins, cache_dir=cache)  # doctest: +SKIP
>>> write(lock, folder)  # doctest: +SKIP
"""
