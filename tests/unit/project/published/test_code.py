"""What the sources of a published release take, read before anything of it is settled."""

from __future__ import annotations

import pytest

from envsmith.project.published.code import naming, takes_what_is_there


@pytest.mark.parametrize(
    ("source", "versions", "is_there"),
    [
        ("import numpy\nnumpy.array(1)\n", {"numpy": "2.0.0"}, True),
        ("def f():\n    import numpy\n    numpy.NaN\n", {"numpy": "2.0.0"}, False),
        ("import numpy\nif numpy.__version__ < '2': raise ImportError\n", {"numpy": "2.0.0"}, False),
        ("import numpy\nif is_numpy_greater_or_equal('2'): raise ImportError\n", {"numpy": "2.0.0"}, False),
        ("import numpy\nimport some_library\n", {"numpy": "2.0.0", "some-library": "1.0"}, False),  # nobody read it
    ],
)
def test_sources_that_take_what_is_there_and_ask_for_no_version_are_read_as_they_stand(source, versions, is_there):
    texts = {"pkg/a.py": source.encode(), "pkg/other.py": b"version = 1\n"}

    named = naming(texts, versions)

    assert named == ["pkg/a.py"]
    assert takes_what_is_there(texts, named, versions) is is_there
