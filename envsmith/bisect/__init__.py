"""Which package did it: a search between an environment that works and one that does not.

``ends`` reads the two, or finds them by time, ``changes`` says what differs and what belongs together, ``search`` finds the culprits with few
trials, ``trial`` makes one environment and runs the command in it, ``journal`` keeps what was tried, ``releases``
narrows an answer to a release and its day, ``report`` writes it down.
"""
