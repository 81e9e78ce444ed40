"""``matrix.json`` and what is made of it: the knowledge and its records as data for other programs and for the page.

``document`` puts it together out of ``torch`` (builds and what they run on), ``grid`` (what the solver says of every framework with every
torch) and ``cells`` (what was run); ``files`` writes it with badges, feed and a file a cell.
"""
