"""Which systems and compilers have a version of the C library or libstdc++, over the committed table."""

from __future__ import annotations

import pytest
from packaging.version import Version

from envsmith.knowledge.symbols.system_libraries import LibraryNeed, Newest, system_libraries


@pytest.mark.parametrize(
    ("need", "compiler", "systems"),
    [
        (LibraryNeed("GLIBCXX", "3.4.32"), "13.2", ("Ubuntu 24.04", "Debian 13", "RHEL 10", "Amazon Linux 2023")),
        (LibraryNeed("GLIBCXX", "3.4.30"), "12.1", ("Ubuntu 22.04", "Debian 12", "RHEL 10", "Amazon Linux 2023")),
        (LibraryNeed("CXXABI", "1.3.13"), "11.1", ("Ubuntu 22.04", "Debian 12", "RHEL 9", "Amazon Linux 2023")),
        (LibraryNeed("GLIBC", "2.32"), None, ("Ubuntu 22.04", "Debian 12", "RHEL 9", "Amazon Linux 2023")),
        (LibraryNeed("GLIBCXX", "3.4.99"), None, ()),
    ],
)
def test_a_version_has_its_first_compiler_and_the_first_systems_that_define_it(need, compiler, systems):
    table = system_libraries()

    assert (table.compiler_of(need), table.systems_with(need)) == (compiler, systems)


def test_a_later_release_never_defines_less():
    table = system_libraries()

    rows = [table.gcc.releases, table.tags.releases, *(system.releases for system in table.systems)]
    for releases in rows:
        for field in ("glibc", "glibcxx", "cxxabi"):
            versions = [Version(getattr(newest, field)) for newest in releases.values() if getattr(newest, field)]
            assert versions == sorted(versions)


@pytest.mark.parametrize("text", ["Rocky Linux 9.4 (Blue Onyx)", "Red Hat Enterprise Linux 9", "CentOS Stream 9"])
def test_distributions_with_the_same_libraries_are_one(text):
    assert system_libraries().named_in(text) == (
        "RHEL 9",
        Newest(glibc="2.34", glibcxx="3.4.29", cxxabi="1.3.13"),
    )


def test_what_is_stated_beside_a_system_counts_more():
    host = system_libraries().host("Ubuntu 20.04", glibcxx="3.4.30")

    assert (host.name, host.newest) == ("", Newest(glibc="2.31", glibcxx="3.4.30", cxxabi="1.3.13"))


def test_a_host_of_which_nothing_is_stated_lacks_nothing():
    host = system_libraries().host()

    assert host.is_unknown
    assert host.newest.defines(LibraryNeed("GLIBCXX", "3.4.99"))
