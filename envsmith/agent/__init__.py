"""The smoke-test agent: the package that the cell's own interpreter runs. It needs only the standard library and torch.

:func:`envsmith.smoke.bundle.bundle` makes one text of it, ``agent.py``, because envsmith is never installed in a cell:

    python -I -B -c BOOTSTRAP supervise     text and plan on stdin, JSON lines on stdout (see smoke/run.py)
    python agent.py --plan PLAN.json        the same without an outer parent
    torchrun … agent.py --plan PLAN.json    every process is a rank, with srun and mpirun too (``launchers``)
    LAUNCHER … agent.py launched --plan JOB a rank of a step, started by a framework's launcher (``launched``)

``supervise`` has three kinds of processes. The *supervisor* never imports torch. It starts ranks, watches a table of
progress in shared memory, judges deadlines, collects evidence and ends exactly the processes that it started. The
*nursery* is its child. It imports torch once and forks ranks, which costs 1.5 s for four ranks instead of 6 s. The
*ranks* run the cases.

Events are facts, not opinions: who was where when something stopped. The judgement is made outside (smoke/verdict.py).

Every module works with Python >= 3.9 and torch >= 2.0. Names that moved between releases are looked up, never imported.
"""
