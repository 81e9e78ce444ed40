"""Which package did it: a search between an environment that works and one that does not.

``ends`` reads the two, or finds them by time, ``changes`` says what differs and what belongs together, ``search`` finds
the culprits with few trials, ``trials`` makes one environment and runs the command in it, ``journal`` keeps what was
tried, ``release_steps`` narrows an answer to a release and its day, ``answer_text`` writes it down.
"""
