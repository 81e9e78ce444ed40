"""A source beside stated releases: which branches are left, and what refuses them."""

from __future__ import annotations

import ast

import pytest

from envsmith.knowledge.names.settled_source import SettledSources

_STATED = {"flash-attn": "2.6.3", "torch": "2.1.0", "numpy": "1.26.4", "pkg": "1.4.0"}


def settled(source: str, **others: str) -> str:
    return settled_sources(source, **others)[0]


def settled_sources(source: str, **others: str) -> tuple[str, SettledSources]:
    texts = {"pkg/__init__.py": source.encode(), **{f"pkg/{name}.py": text.encode() for name, text in others.items()}}
    sources = SettledSources(
        texts,
        _STATED,
        "3.11",
        lambda module: module.replace("_", "-"),
        lambda chain: chain[-1] != "newer_func",
        itself=frozenset({"pkg"}),
    )
    return ast.unparse(sources.parse("pkg/__init__.py", texts["pkg/__init__.py"])), sources


@pytest.mark.parametrize(
    "condition",
    [
        "flash_attn.__version__ >= '2.6.3'",
        "version.parse(flash_attn.__version__) < version.parse('2.7')",
        "Version('2.0') <= Version(flash_attn.__version__) < Version('3.0')",
        "parse(importlib.metadata.version('flash_attn')).major == 2",
        "tuple(map(int, flash_attn.__version__.split('.')[:2])) >= (2, 6)",
        "[int(part) for part in flash_attn.__version__.split('.')][0] > 1",
        "torch.__version__ >= '2.0' and not torch.__version__ >= '2.10'",
        "sys.version_info >= (3, 10)",
        "is_flash_attn_greater_or_equal('2.5')",
        "compare_version('torch', operator.ge, '2.1')",
        "Version(numpy.__version__) in SpecifierSet('<2')",
        "importlib.util.find_spec('flash_attn') is not None",
        "re.compile(r'(\\d+)\\.(\\d+)').match(flash_attn.__version__).groups() == ('2', '6')",
        "'.'.join(torch.__version__.split('.', maxsplit=2)[:2]) == '2.1'",
        "tuple(int(part) for part in flash_attn.__version__.split('.') if part.isdigit()) >= (2, 6)",
        "not os.getenv('SKIP_CHECK') and flash_attn.__version__ >= '2.6'",
        "list(Version(flash_attn.__version__).release) + [0] * 2 == [2, 6, 3, 0, 0]",
        "{'2': 'old', '3': 'new'}[flash_attn.__version__[0]] == 'old'",
        "hasattr(flash_attn, '__version__')",
        "Version(torch.__version__) >= Version(f'{torch.__version__[0]}.1')",
        "isinstance(torch.__version__, str) and not isinstance(torch.__version__, Version) and torch.__version__ >= '2'",
    ],
)
def test_the_branch_that_a_stated_release_takes_is_all_that_is_left(condition):
    imports = (
        "import importlib, operator, os, re, sys\nimport flash_attn, numpy, torch\nfrom packaging import version\n"
        "from packaging.version import Version, parse\nfrom packaging.specifiers import SpecifierSet\n"
        "from transformers.utils import is_flash_attn_greater_or_equal\n"
        "from lightning_utilities.core.imports import compare_version\n"
    )

    text = settled(f"{imports}if {condition}:\n    import taken\nelse:\n    import other\n")

    assert text.endswith("\nimport taken")


@pytest.mark.parametrize(
    "condition",
    [
        "jax.__version__ >= '0.4'",
        "flash_attn.__version__ >= FLOOR",
        "torch.cuda.is_available() and version.parse(torch.__version__).local",
        "sys.version_info >= (3, 11, 4)",
        "hasattr(flash_attn, 'newer_func')",
        "torch.__version__ > '2.1.0'",
        "flash_attn.__version__ * 10 ** 9 > '2'",
        "re.match('((((2+)+)+)+)+x', flash_attn.__version__)",
    ],
)
def test_what_nobody_stated_decides_nothing(condition):
    source = (
        f"import re, sys, flash_attn, jax, torch\nfrom packaging import version\nif {condition}:\n    import taken\n"
    )

    assert f"if {condition}:" in settled(source)


def test_a_branch_of_an_old_python_binds_no_name_where_no_python_is_stated():
    source = (
        b"import sys\nif sys.version_info < (3, 8):\n    import importlib_metadata\nelse:\n"
        b"    import importlib.metadata as importlib_metadata\n"
        b"if importlib_metadata.version('torch') >= '2.0':\n    import taken\nelse:\n    import other\n"
    )
    sources = SettledSources({"pkg.py": source}, _STATED, None, str, bool)

    tree = sources.parse("pkg.py", source)

    assert ast.unparse(tree).endswith("\nimport taken")


def test_a_name_that_another_module_worked_out_decides_too():
    compat = "import flash_attn\nfrom packaging.version import Version\nNEW = Version(flash_attn.__version__) >= Version('2.7')\n"
    gate = "import flash_attn\ndef is_new(floor='2.7'):\n    return flash_attn.__version__ >= floor\n"
    source = "from .compat import NEW\nfrom . import gate\nif NEW or gate.is_new():\n    import taken\nelse:\n    import other\n"

    assert settled(source, compat=compat, gate=gate).endswith("\nimport other")


def test_what_a_try_takes_decides_where_the_stated_release_has_it():
    flag = "try:\n    from flash_attn import {}\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    import taken\n"

    assert settled(flag.format("func")).endswith("\nimport taken")
    assert settled(flag.format("newer_func")).endswith("\nif HAS:\n    import taken")


@pytest.mark.parametrize(
    "call", ["re.sub('(a+)+$', '', TEXT, 0)", "re.sub('(a+)+$', TEXT, 'a')", "re.match('(a+)+$', TEXT)"]
)
def test_a_pattern_that_may_last_is_not_held_against_a_long_text(call):
    source = f"import re, torch\nVERSION = torch.__version__\nTEXT = '{'a' * 40}!'\nif {call}:\n    import first"

    assert "import first" in settled(source)


def test_a_table_of_operators_compares_versions():
    source = (
        "import operator, torch\nfrom packaging.version import parse\nTABLE = {'<': operator.lt, '>=': operator.ge}\n"
        "def compare(a, sign, b):\n    if sign not in TABLE:\n        raise ValueError(sign)\n"
        "    return TABLE[sign](parse(a), parse(b))\n"
        "if compare(torch.__version__, '<', '2.0'):\n    import old\nelse:\n    import new"
    )

    assert settled(source).endswith("\nimport new")


def test_a_long_chain_of_calls_on_what_nobody_knows_is_read_once():
    calls = ".replace('a', 'b')" * 60

    assert "first" in settled(f"text = read(){calls}\nif text:\n    import first")


def test_a_module_that_surely_has_a_name_is_asked_for_it():
    condition = "not hasattr(flash_attn, 'func') or version.parse(flash_attn.__version__) < version.parse('2')"
    source = (
        f"import flash_attn\nfrom packaging import version\nif {condition}:\n    import old\nelse:\n    import taken\n"
    )

    assert settled(source).endswith("\nimport taken")


@pytest.mark.parametrize(("name", "is_left"), [("func", False), ("newer_func", True)])
def test_what_stands_for_an_import_is_gone_where_the_import_surely_passed(name, is_left):
    attempt = f"try:\n    from flash_attn import {name}\nexcept ImportError:\n    {name} = object\n"
    own_way = (
        f"with try_import() as done:\n    from flash_attn import {name}\nif not done.passed:\n    {name} = object\n"
    )

    assert [f"{name} = object" in settled(source) for source in (attempt, own_way)] == [is_left, is_left]


def test_what_a_decided_branch_binds_decides_too():
    source = "import flash_attn\nif flash_attn.__version__ < '2':\n    NEW = False\nelse:\n    NEW = True\n"

    assert settled(f"{source}def f():\n    if NEW:\n        import taken\n    else:\n        import other\n").endswith(
        " import taken"
    )


def test_what_follows_a_branch_that_leaves_does_not_run():
    source = "import flash_attn\ndef f():\n    if flash_attn.__version__ < '2.7':\n        return 1\n    import other\n"

    assert "other" not in settled(source)


def test_a_name_that_is_bound_again_is_not_known():
    source = "import flash_attn\nNEW = flash_attn.__version__ < '2.7'\nfor NEW in steps:\n    pass\nif NEW:\n    import taken\n"

    assert "if NEW:" in settled(source)


@pytest.mark.parametrize(
    "statement",
    [
        "assert flash_attn.__version__ >= '2.7', 'too old'",
        "if flash_attn.__version__ < '2.7':\n    raise ImportError('too old')",
    ],
)
def test_a_statement_that_stops_the_import_is_a_refusal(statement):
    _, sources = settled_sources(f"import flash_attn\n{statement}\n")

    [refusal] = sources.refusals.values()

    assert refusal.packages == {"flash-attn"}
    assert "flash_attn.__version__" in refusal.condition


_DIGITS = """
def digit_version(text):
    digits = []
    for part in text.split('.'):
        if part.isdigit():
            digits.append(int(part))
        elif part.find('rc') != -1:
            number, candidate = part.split('rc')
            digits.extend([int(number) - 1, int(candidate)])
    return digits
"""
_PADDED = """
from packaging.version import parse
def digit_version(text: str, length: int = 4):
    version = parse(text)
    assert version.release, f'no version: {text}'
    release = list(version.release)[:length]
    while len(release) < length:
        release += [0]
    if version.is_prerelease:
        mapping = {'a': -3, 'b': -2, 'rc': -1}
        val = -4
        if version.pre:
            if version.pre[0] not in mapping:
                warnings.warn('unknown')
            else:
                val = mapping[version.pre[0]]
            release.extend([val, version.pre[-1]])
    else:
        release.extend([0, 0])
    return tuple(release)
"""
_REMEMBERED = """
_version = None
def digit_version(text):
    global _version
    def split():
        try:
            return tuple(map(int, text.split('.')))
        except ValueError:
            return ()
    if _version is None:
        _version = split()
    return _version
"""


@pytest.mark.parametrize("function", [_DIGITS, _PADDED, _REMEMBERED])
def test_a_function_of_the_package_that_reads_a_version_is_followed(function):
    check = "import flash_attn\nassert digit_version('2.4') <= digit_version(flash_attn.__version__) <= digit_version('2.6.{}')\n"

    _, fine = settled_sources(function + check.format(3))
    _, refusing = settled_sources(function + check.format(2))

    assert not fine.refusals
    assert [refusal.packages for refusal in refusing.refusals.values()] == [{"flash-attn"}]


_OWN_VERSION = """
from .version import __version__ as own
def check():
    if has():
        import flash_attn
        if not os.getenv('NO_CHECK') and flash_attn.__version__ != own:
            raise RuntimeError('another release')
def has():
    import importlib.util
    return importlib.util.find_spec('flash_attn') is not None
import os
"""
_LOOP = """
import importlib
from packaging.version import parse
def check():
    from . import compiled
    for name, least in [('unstated', '1.0'), ('numpy', '1.20'), ('flash_attn', '2.7')]:
        if parse(importlib.import_module(name).__version__) < parse(least):
            raise ImportError(name)
"""
_BY_ARGUMENTS = """
import flash_attn
def check(version=flash_attn.__version__, least='2.7'):
    'Check it.'
    try:
        if is_older(version, least):
            raise ImportError('too old')
    except LookupError:
        return
def is_older(one, other):
    return [int(part) for part in one.split('.')] < [int(part) for part in other.split('.')]
"""
_ENDED = """
import flash_attn, sys
def check():
    if flash_attn.__version__ >= '2.7':
        return
    sys.exit('too old')
"""


@pytest.mark.parametrize("source", [_OWN_VERSION, _LOOP, _BY_ARGUMENTS, _ENDED])
def test_a_call_that_comes_to_a_raise_is_a_refusal_where_it_stands(source):
    text, sources = settled_sources(f"{source}check()\n# done\n", version="__version__ = make_version()\n")

    last = len(f"{source}check()".splitlines())
    assert sources.refusals["pkg/__init__.py", last].packages == {"flash-attn"}
    assert text.endswith("raise")


@pytest.mark.parametrize(
    "body",
    [
        "    if unknown():\n        return\n    {}\n",
        "    try:\n        {}\n    except Exception:\n        pass\n",
        "    try:\n        import unstated\n    except ImportError:\n        return\n    {}\n",
        "    for part in parts():\n        if part:\n            return\n    {}\n",
        "    while True:\n        pass\n    {}\n",
        "    yield 1\n    {}\n",
        "    assert known or {}\n".replace("{}", "stop('2')"),
    ],
)
def test_a_call_that_may_not_come_to_its_raise_is_none(body):
    stop = "def stop(least):\n    if flash_attn.__version__ < '2.7':\n        raise ImportError(least)\n"
    source = f"import flash_attn\n{stop}def check():\n{body.format('stop(1)')}check()\n"

    _, sources = settled_sources(source)

    assert ("pkg/__init__.py", len(source.splitlines())) not in sources.refusals


@pytest.mark.parametrize(
    ("kind", "handler", "count"),
    [
        ("RuntimeError", "except RuntimeError:\n    pass", 0),
        ("RuntimeError", "except (ImportError, Exception):\n    pass", 0),
        ("OwnError", "except ImportError:\n    pass", 0),
        ("RuntimeError", "except ImportError:\n    pass", 1),
        ("RuntimeError", "except RuntimeError as error:\n    raise ImportError from error", 1),
    ],
)
def test_a_raise_that_a_handler_takes_is_no_refusal(kind, handler, count):
    source = (
        f"import flash_attn\ntry:\n    if flash_attn.__version__ < '2.7':\n        raise {kind}('too old')\n{handler}\n"
    )

    _, sources = settled_sources(source)

    assert len(sources.refusals) == count


@pytest.mark.parametrize(
    "value",
    [
        "[a + b + c for a in range(1000) for b in range(1000)]",
        "[[[c for c in range(999)] for b in range(999)] for a in range(999)]",
        "grown()",
        "nested()",
    ],
)
def test_a_value_that_has_no_end_is_not_worked_out(value):
    source = (
        "import flash_attn\ndef grown():\n    text = flash_attn.__version__\n    while True:\n        text += text\n"
        "def nested():\n    part = (0.5,)\n    for _ in range(99):\n        part = (part, part)\n    return str(part)\n"
        f"if {value} and flash_attn.__version__ < '2.7':\n    import taken\n"
    )

    assert "if " in settled(source)
