"""What stands above a function: decorators that are known by name, and others as text, to be followed to their own.

A text says of a function below which decorators it stands, ``~plain~module.called[old,new]``, and what it does itself
as one, ``&old&[new,?]``: which arguments of another function it touches, in brackets where it is called first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from envsmith.knowledge.names.dotted import dotted
from envsmith.knowledge.names.scopes import children

# What the arguments of a decorator state, and an argument that is not constant.
STATED = "?"
# Decorators that leave the arguments as they are.
_HARMLESS = (
    "contextmanager",
    "overload",
    "staticmethod",
    "classmethod",
    "abstractmethod",
    "property",
    "cache",
    "no_grad",
    "inference_mode",
    "deprecated",
    "compatibility",
    "final",
    "override",
    "export",
    "unused",
    "ignore",
    "script",
    "script_if_tracing",
    "require_torch",
    "nvtx",
    "instrument_w_nvtx",
    "_exception_logger",
    "_time_logger",
    "_copy_to_script_wrapper",
    "substitute_in_graph",
    "disable",
    "experimental",
    "add_start_docstrings",
    "add_start_docstrings_to_model_forward",
    "add_end_docstrings",
    "replace_return_docstrings",
    "add_code_sample_docstrings",
    "auto_docstring",
    "torch_function_dispatch",
    "set_module",
    "array_function_dispatch",
    "validate_hf_hub_args",
    "jit",
    "custom_op",
    "_torch_custom_op_wrapper",  # flash-attn: torch.library.custom_op, or nothing
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MARK = re.compile(r"^(\S+ [?+-]*)(?:(~)|&)[^(]*\(")


def name_of(decorator: ast.expr) -> str:
    """Return the dotted name of a decorator, called or not."""
    return dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)


def is_harmless(decorator: ast.expr) -> bool:
    """Return whether a decorator is known by its name to leave the arguments as they are."""
    name = name_of(decorator)
    return name.rpartition(".")[2] in _HARMLESS or name.endswith("cache")


def under(decorators: Sequence[ast.expr]) -> str:
    """Return ``~plain~module.called[old,new]``, with what the arguments of each state. ``~`` where one has no name."""
    texts = [_text(decorator) for decorator in decorators]
    return "".join(f"~{text}" for text in texts) if all(texts) else "~"


def is_handed_on(argument: str, decorator: str, text: str) -> bool:
    """Return whether one decorator of :func:`under` surely hands on an argument, by its own text: ``&old(function``."""
    _, bracket, words = decorator.partition("[")
    stated = set(words.rstrip("]").split(","))
    for effect in text.partition("(")[0].split("&")[1:]:
        if effect.startswith("[") is bool(bracket):
            touched = set(effect.strip("[]").split(","))
            return argument not in touched and not (STATED in touched and stated & {STATED, argument})
    return False


def without_decorators(line: str) -> str:
    """Return a line that says of a function no more than whether a decorator may change its arguments."""
    return _MARK.sub(r"\1\2(", line)


def stated_words(values: Iterable[ast.AST]) -> dict[str, None]:
    """Return the names in constants and keywords of values, and :data:`STATED` for what is not constant."""
    return dict.fromkeys(chain.from_iterable(map(_words, values)))


def _text(decorator: ast.expr) -> str:
    name = name_of(decorator)
    if not isinstance(decorator, ast.Call):
        return name
    return name and f"{name}[{','.join(stated_words((*decorator.args, *decorator.keywords)))}]"


def _words(value: ast.AST) -> Iterator[str]:
    if isinstance(value, ast.Constant):
        yield from _WORD.findall(value.value) if isinstance(value.value, str) else ()
    elif isinstance(value, (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.keyword)):
        yield from filter(None, [getattr(value, "arg", None)])
        yield from chain.from_iterable(map(_words, children(value)))
    else:
        yield STATED
