"""What a setup.py says that it requires, as people write it."""

from __future__ import annotations

import pytest

from envsmith.project.setup_script import read_setup


def _requirements(text: str, extra: str | None = None) -> list[str]:
    return [requirement for _, requirement, of in read_setup(text).lines if of == extra]


@pytest.mark.parametrize(
    "text",
    [
        "r = ['a']\nr += ['b']\nsetup(install_requires=r)",
        "r = ['a']\nr.append('b')\nsetup(install_requires=r)",
        "r: list[str] = ['a']\nr.extend(['b'])\nsetup(install_requires=r)",
        "r = ['a']\nr = r + ['b']\nsetup(install_requires=r)",
        "v = '1'\nsetup(install_requires=('a', 'b'))",
        "setup(**{'install_requires': {'a', 'b'}})",
        "setup(install_requires='a\\n  b\\n')",
        "other = ['b']\nsetup(install_requires=['a', *other])",
        "other = ['a', 'b']\nsetup(install_requires=[other])",
    ],
)
def test_a_list_is_read_however_it_is_made(text):
    assert sorted(_requirements(text)) == ["a", "b"]


def test_a_text_that_is_put_together_is_read():
    assert _requirements("V = '2.1'\nsetup(install_requires=[f'torch=={V}', 'numpy' + '<2'])") == [
        "torch==2.1",
        "numpy<2",
    ]


@pytest.mark.parametrize(
    "table",
    [
        "e = {}\ne['gpu'] = ['a']\nsetup(extras_require=e)",
        "e = dict(gpu=['a'])\nsetup(extras_require=e)",
        "e = {}\ne.update({'gpu': ['a']})\nsetup(extras_require=e)",
        "base = {'gpu': ['a']}\nsetup(extras_require={**base})",
        "base = {'gpu': ['a']}\nsetup(extras_require=base | {})",
        "e = {}\ne['one'] = ['a']\ne['gpu'] = e['one']\nsetup(extras_require=e)",
    ],
)
def test_extras_are_read_however_their_table_is_made(table):
    assert _requirements(table, "gpu") == ["a"]


def test_an_extra_that_is_computed_is_one_that_the_project_has():
    script = read_setup("e = {}\ne['all'] = {d for ds in e.values() for d in ds}\nsetup(extras_require=e)")
    assert script.computed == [(2, "all")]


def test_what_is_added_in_some_cases_is_told_apart():
    script = read_setup("r = ['a']\nif sys.platform == 'linux':\n    r.append('triton')\nsetup(install_requires=r)")
    assert ([text for _, text, _ in script.lines], script.conditional) == (["a"], [3])


@pytest.mark.parametrize(
    "text",
    [
        "r = []\nwith open('./deps.txt') as f:\n    for line in f:\n        r.append(line)\nsetup(install_requires=r)",
        "def read(path='deps.txt'):\n    return open(path).read(), []\nr, _ = read()\nsetup(install_requires=r)",
    ],
)
def test_a_file_whose_lines_are_added_one_by_one_is_found(text):
    ((_, paths, extra),) = read_setup(text).files
    assert (paths[-1].removeprefix("./"), extra) == ("deps.txt", None)


def test_the_file_that_a_function_is_given_comes_before_its_default():
    text = "def read(path='a.txt'):\n    return open(path)\nsetup(extras_require={'dev': read('b.txt')})"
    assert [(paths[-1], extra) for _, paths, extra in read_setup(text).files] == [("b.txt", "dev")]


@pytest.mark.parametrize(
    "text",
    [
        "a = b + ['x']\nb = a + ['y']\nsetup(install_requires=a)",
        "a = f'{a}'\nsetup(install_requires=[a])",
        "e = e | e\nsetup(extras_require=e)",
        "\n".join(f"a{n} = a{n + 1} + a{n + 1}" for n in range(60)) + "\nsetup(install_requires=a0)",
    ],
)
def test_names_that_are_made_of_themselves_come_to_an_end(text):
    assert len(read_setup(text).lines) < 100
