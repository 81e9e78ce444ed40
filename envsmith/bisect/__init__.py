"""Which package did it: a search between an environment that works and one that does not.

``ends`` reads the two, ``changes`` says what differs and what belongs together, ``search`` finds the culprits with few
trials, ``trial`` makes one environment and runs the command in it, ``journal`` keeps what was tried, ``releases`` and
``moments`` narrow an answer to a release and to a day, ``report`` writes it down.
"""
