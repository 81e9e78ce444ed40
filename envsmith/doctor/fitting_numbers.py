"""What the numbers of a message tell: which would fit where its own do not, and which shape is a part of which."""

from __future__ import annotations

import math
import re

_DIVIDES = re.compile(r"divisible by|a multiple of|(?P<into>must divide|does not divide|should divide)", re.IGNORECASE)
# A number as messages write one: in brackets, behind a sign, or alone. Not of a rank, a version, a path or a time.
_NUMBER = re.compile(r"(?<![\w.:/\-])(\d{1,9})(?![\w:/\-]|\.\d)")
_BETWEEN_FACTORS = re.compile(r"[^.;!?\d]{0,60}(?:[x*]|\btimes\b)[^.;!?\d]{0,60}")
_PRODUCT = re.compile(
    r"(?:(?P<name>\w+) is not equal to (?P<names>\w+(?: ?\* ?\w+){1,4}) )?"
    r"(?<!\d)(?P<whole>\d{1,9}) != (?P<parts>\d{1,9}(?: ?\* ?\d{1,9}){1,4})"
)
_LARGEST, _MOST_DIVISORS = 1 << 16, 16


def numbers_that_fit(sentence: str) -> str:
    """Return the sum of a message and what would make it right, empty for a message without one."""
    if product := _PRODUCT.search(sentence):
        return _of_product(product)
    word = _DIVIDES.search(sentence)
    if word is None:
        return ""
    before, behind = sentence[: word.start()], sentence[word.end() :]
    first, second = _factors(before), _factors(behind)
    if not first or not second:
        return ""
    whole, part = math.prod(first[-1]), math.prod(second[0])
    if word["into"]:
        whole, part = part, whole
    if not 1 < part < _LARGEST or not 0 < whole < _LARGEST or whole % part == 0:
        return ""
    divisors = [str(n) for n in range(1, whole + 1) if whole % n == 0][:_MOST_DIVISORS]
    near = [str(n) for n in (whole // part * part, (whole // part + 1) * part) if n]
    return f"{whole} can be divided by {', '.join(divisors)}, not by {part}: take one of these for {part}, or {' or '.join(near)} for {whole}"


def _factors(text: str) -> list[list[int]]:
    """Return the numbers of a text, those together that it multiplies."""
    products: list[list[int]] = []
    end = 0
    for match in _NUMBER.finditer(text):
        if products and _BETWEEN_FACTORS.fullmatch(text[end : match.start()]):
            products[-1].append(int(match[1]))
        else:
            products.append([int(match[1])])
        end = match.end()
    return products


def _of_product(product: re.Match[str]) -> str:
    whole, parts = int(product["whole"]), [int(n) for n in re.findall(r"\d+", product["parts"])]
    total = math.prod(parts)
    if total == whole:
        return ""
    names = re.findall(r"\w+", product["names"] or "")
    choices = [f"{product['name'] or 'the left side'} {total}"]
    for name, part in zip(names, parts, strict=False):
        others = total // part if part else 0
        if others and whole % others == 0 and whole >= others:
            choices.append(f"{name} {whole // others}")
    return f"{' * '.join(map(str, parts))} is {total}, not {whole}: {' or '.join(choices)}"


def parts_between(saved: str, own: str) -> int:
    """Return into how many parts one of two shapes is divided along one side for the other, 0 for other shapes."""
    one, other = ([int(n) for n in re.findall(r"\d+", shape)] for shape in (saved, own))
    sides = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    if len(one) != len(other) or len(sides) != 1:
        return 0
    small, large = sorted(sides[0])
    return large // small if small > 0 and large % small == 0 else 0
