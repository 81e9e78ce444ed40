"""Names that were not measured: which releases are opened for a question, and what they have."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from release_index import Index

from envsmith.errors import NetworkError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.lock.index.asked_names import AskedReleases, between, spread
from envsmith.net.http import NotFoundError


def index_of(sources: dict[str, dict[str, str]]) -> Index:
    index = Index()
    for version, files in sources.items():
        index.release(version, files)
    return index


def ask(releases: AskedReleases, path: str, argument: str | None = None):
    names = releases.names(range(len(releases.versions)), "pkg")
    return NameIndex(Path("nowhere")).with_names(names).ask(path, argument)


def test_a_question_reads_the_modules_that_it_leads_to_and_no_other():
    index = Index()
    for version, method in (("1.0", "run"), ("2.0", "go")):
        core = f"class Thing:\n  def {method}(self): ..."
        huge = "".join(f"x{n} = {n * n}\n" for n in range(90_000))
        index.release(version, {"pkg/__init__.py": "from .core import Thing", "pkg/core.py": core, "pkg/huge.py": huge})
    sizes = sum(len(data) for data in index.fetcher.files.values())

    with AskedReleases(index, "pkg") as releases:
        answer = ask(releases, "pkg.Thing.run")

    assert (answer.present, answer.absent, answer.is_sample) == ({"1.0"}, {"2.0"}, False)
    assert sum(sent for _, sent in index.fetcher.sent) < sizes / 2


_SO = "pkg/_fast.cpython-312-x86_64-linux-gnu.so"


def cython_texts(texts: str) -> bytes:
    return b"\0cython_runtime\0CYTHON_COMPRESS_STRINGS\0" + zlib.compress(texts.encode(), 9) + b"\0x"


@pytest.mark.parametrize(
    ("compiled", "absent", "unknown"),
    [
        ("\0__test__\0cline_in_traceback\0other\0", {"2.0"}, set()),  # Cython: each name stands alone
        ("\0__test__\0cline_in_traceback\0old\0", set(), {"2.0"}),
        ("\0__test__\0cline_in_traceback\0doc of pkg.old\0", set(), {"2.0"}),
        (cython_texts("othercline_in_traceback__test__"), {"2.0"}, set()),  # since 3.1: all in one, compressed
        (cython_texts("goldcline_in_traceback__test__"), set(), {"2.0"}),
        (cython_texts("other"), set(), {"2.0"}),  # not those of the module
        (b"\0cython_runtime\0CYTHON_COMPRESS_STRINGS\0", set(), {"2.0"}),  # compressed by something else
        (b"\0cython_runtime\0othercline_in_traceback__test__\0", {"2.0"}, set()),  # all in one as it is
        ("\0PyInit__fast\0other\0", set(), {"2.0"}),  # not of Cython
    ],
)
def test_a_star_import_of_a_compiled_module_brings_no_name_that_its_file_does_not_hold(compiled, absent, unknown):
    star = "from ._fast import *\n"
    index = index_of(
        {
            "1.0": {"pkg/__init__.py": f"{star}def old(): ...", _SO: compiled},
            "2.0": {"pkg/__init__.py": star, _SO: compiled},
        }
    )

    with AskedReleases(index, "pkg") as releases:
        answer = ask(releases, "pkg.old")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, absent, unknown)


def test_names_that_a_star_or_a_base_brings_are_followed():
    index = index_of(
        {
            "1.0": {
                "pkg/__init__.py": "from .a import *",
                "pkg/a.py": "from .b import Base\nclass Thing(Base): ...",
                "pkg/b.py": "class Base:\n  def f(self, x): ...",
            },
            "2.0": {"pkg/__init__.py": "from .a import *", "pkg/a.py": "class Thing: ..."},
        }
    )

    with AskedReleases(index, "pkg") as releases:
        member, argument = ask(releases, "pkg.Thing.f"), ask(releases, "pkg.Thing.f", "x")

    assert (member.present, member.absent) == ({"1.0"}, {"2.0"})
    assert argument.present == {"1.0"}


def test_a_folder_without_init_and_a_compiled_module_are_modules():
    index = index_of({"1.0": {"pkg/part/inner.py": "x = 1", "pkg/fast.cpython-311-x86_64-linux-gnu.so": ""}})

    with AskedReleases(index, "pkg") as releases:
        inner, compiled, other = ask(releases, "pkg.part.inner.x"), ask(releases, "pkg.fast.f"), ask(releases, "pkg.no")

    assert inner.present == {"1.0"}
    assert compiled.unknown == {"1.0"}
    assert other.absent == {"1.0"}


def test_a_release_that_cannot_be_read_is_left_out():
    index = index_of(
        {"1.0": {"pkg/__init__.py": "x = 1"}, "2.0": {"pkg/__init__.py": ""}, "3.0": {"pkg/__init__.py": ""}}
    )
    index.fetcher.files["pkg-2.0-py3-none-any.whl"] = b"no wheel"

    with AskedReleases(index, "pkg") as releases:
        answer = ask(releases, "pkg.x")

    assert answer.releases == ("1.0", "3.0")
    assert answer.is_sample


def test_a_release_that_cannot_be_opened_is_tried_twice_and_not_in_the_next_round():
    index = index_of({"1.0": {"pkg/__init__.py": "x = 1"}, "2.0": {"pkg/__init__.py": ""}})
    index.fetcher.broken["pkg-2.0-py3-none-any.whl"] = 9

    with AskedReleases(index, "pkg") as releases:
        ask(releases, "pkg.x")
        ask(releases, "pkg.y")

    assert index.fetcher.broken["pkg-2.0-py3-none-any.whl"] == 9 - 2


def test_a_release_that_is_opened_at_the_second_attempt_is_read():
    index = index_of({"1.0": {"pkg/__init__.py": "x = 1"}})
    index.fetcher.broken["pkg-1.0-py3-none-any.whl"] = 1

    with AskedReleases(index, "pkg") as releases:
        assert ask(releases, "pkg.x").present == {"1.0"}


def test_prereleases_are_not_opened():
    index = index_of({"1.0": {"pkg/__init__.py": ""}, "2.0rc1": {"pkg/__init__.py": ""}})

    with AskedReleases(index, "pkg") as releases:
        assert releases.versions == ("1.0",)


def test_the_borders_are_found_in_few_steps():
    has = {at: 37 <= at < 211 for at in range(300)}

    places = spread(300)
    while new := between(places, has):
        places |= new

    assert {36, 37, 210, 211} <= places
    assert len(places) < 30


@pytest.mark.parametrize(("count", "places"), [(0, set()), (1, {0}), (3, {0, 1, 2}), (7, set(range(7)))])
def test_of_few_releases_all_are_opened(count, places):
    assert spread(count) == places


def test_a_question_that_takes_too_long_is_given_up():
    clock = iter([0.0, 100.0])
    index = index_of({"1.0": {"pkg/__init__.py": ""}})

    with (
        AskedReleases(index, "pkg", clock=lambda: next(clock)) as releases,
        pytest.raises(NetworkError, match="takes more than 10 s"),
    ):
        releases.names({0}, "pkg")


def test_nothing_is_said_of_releases_that_were_not_opened():
    index = index_of({f"{at}.0": {"pkg/__init__.py": "x = 1" if at < 3 else ""} for at in range(1, 6)})

    with AskedReleases(index, "pkg") as releases:
        names = releases.names({0, 4}, "pkg", unread={1, 2, 3})
        answer = NameIndex(Path("nowhere")).with_names(names).ask("pkg.x")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, {"5.0"}, {"2.0", "3.0", "4.0"})
    assert answer.spec() == "<2.0"


_HANDING = "def it(fn):\n  def wrapper(self, *args, **kwargs): return fn(self, *args, **kwargs)\n  return wrapper"


def test_a_decorator_is_followed_to_its_own_text_in_each_release():
    dropping = _HANDING.replace("return fn", "kwargs = clean(kwargs); return fn")
    used = "from pkg.util import it\nclass Thing:\n  @it\n  def __init__(self, {}): ..."
    index = index_of(
        {
            version: {"pkg/__init__.py": used.format(argument), "pkg/util.py": decorator}
            for version, argument, decorator in (
                ("1.0", "old=1", _HANDING),
                ("2.0", "new=1", _HANDING),
                ("3.0", "new=1", dropping),
                ("4.0", "new=1", "from beyond import it"),
            )
        }
    )

    with AskedReleases(index, "pkg") as releases:
        answer, wanted = ask(releases, "pkg.Thing", "old"), ask(releases, "pkg.Thing", "other=")

    assert (answer.present, answer.absent, answer.unknown) == ({"1.0"}, {"2.0"}, {"3.0", "4.0"})
    assert not wanted.absent, "a wrapper may give what the function wants"


def test_modules_and_callables_are_found_by_the_text_of_the_sources_that_were_opened():
    old = {"pkg/__init__.py": "", "pkg/old.py": "class Thing:\n  def __init__(self, level): ..."}
    new = {"pkg/__init__.py": "", "pkg/deep/new.py": "class Thing:\n  def __init__(self, depth): ..."}
    index = index_of({"1.0": old, "2.0": new})

    with AskedReleases(index, "pkg") as releases:
        names = releases.names({0, 1}, "pkg")

        assert names.modules_defining("Thing") == ("pkg.old", "pkg.deep.new")
        assert names.callables_taking("__init__", "depth") == ("pkg.deep.new.Thing",)


def test_a_star_import_reads_no_module_that_cannot_bring_the_name():
    stars = "from .a import *\nfrom .b import *\n"
    index = index_of({"1.0": {"pkg/__init__.py": stars, "pkg/a.py": "other = 1", "pkg/b.py": "x = 1"}})

    with AskedReleases(index, "pkg") as releases:
        names = releases.names({0}, "pkg")

        assert NameIndex(Path("nowhere")).with_names(names).ask("pkg.x").present == {"1.0"}
        assert (names.may_bind("pkg.a", "x"), names.may_bind("pkg.b", "x")) == (False, True)


def test_a_project_that_the_index_does_not_have_is_said():
    with pytest.raises(NotFoundError):
        AskedReleases(Index(), "pkg")
