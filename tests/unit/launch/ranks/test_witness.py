"""What a rank says of itself: of each thread where it stands, and what it has not left behind."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from envsmith.launch.ranks.recorder import stacks_of
from envsmith.launch.ranks.witness import all_stacks


def test_a_thread_says_which_error_it_handles():
    number = str(threading.get_ident())

    with ThreadPoolExecutor(1) as pool:
        try:
            int("shard")
        except ValueError:
            within = pool.submit(all_stacks).result()
        after = pool.submit(all_stacks).result()

    handled, nothing = (
        next(each.handles for each in stacks_of(json.loads(json.dumps({"stacks": rows}))) if each.number == number)
        for rows in (within, after)
    )
    assert handled.error == "ValueError: invalid literal for int() with base 10: 'shard'"
    assert handled.place.startswith("test_witness.py:")
    assert nothing is None
