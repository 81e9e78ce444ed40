"""Which package brings what building from source lacks, by the distribution of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.base.os_packages import _FAMILIES, NAMES, install_command, install_commands

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n'
MINT = "ID=linuxmint\nID_LIKE='ubuntu debian'\n"
FEDORA = 'NAME="Fedora Linux"\nID=fedora\n'
ROCKY = 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'


@pytest.mark.parametrize(
    ("release", "command"),
    [
        (DEBIAN, "apt-get install g++ make python3.11-dev"),
        (UBUNTU, "apt-get install g++ make python3.11-dev"),
        (MINT, "apt-get install g++ make python3.11-dev"),
        (FEDORA, "dnf install gcc-c++ make python3.11-devel"),
        (ROCKY, "dnf install gcc-c++ make python3.11-devel"),
        ("ID=void\n", ""),
        ("not a release file", ""),
        ("ID=\n", ""),
    ],
)
def test_package_is_that_of_the_distribution(tmp_path: Path, release: str, command: str) -> None:
    (tmp_path / "os-release").write_text(release)
    places = [tmp_path / "nowhere", tmp_path / "os-release"]
    assert install_command(["c++", "make", "headers"], python="3.11", places=places) == command


def test_machine_of_another_distribution_is_told_of_all() -> None:
    assert install_commands("c++") == "apt-get install g++ or dnf install gcc-c++"
    assert install_commands("headers") == "apt-get install python3-dev or dnf install python3-devel"


@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_has_a_package_for_everything_that_can_be_missing(family: str) -> None:
    assert set(_FAMILIES[family].packages) == set(NAMES)
