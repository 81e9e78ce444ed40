"""The libstdc++ that the loader takes."""

from __future__ import annotations

import pytest

from envsmith.doctor.facts import Draft
from envsmith.doctor.library_copies import libstdcxx_of


def _place(folder, minor):
    folder.mkdir(parents=True)
    (folder / f"libstdc++.so.6.0.{minor}").touch()
    (folder / "libstdc++.so.6").symlink_to(f"libstdc++.so.6.0.{minor}")


@pytest.mark.parametrize(("is_conda", "newest"), [(True, "3.4.33"), (False, "3.4.29")])
def test_the_interpreter_of_conda_loads_the_libstdcxx_of_its_own_folder(tmp_path, is_conda, newest):
    _place(tmp_path / "env" / "lib", 33)
    _place(tmp_path / "stated", 29)
    if is_conda:
        (tmp_path / "env" / "conda-meta").mkdir()
    draft = Draft(variables={"LD_LIBRARY_PATH": f":{tmp_path}/stated"})

    libstdcxx_of(draft, tmp_path / "env" / "bin" / "python")

    assert draft.host["glibcxx"] == newest
