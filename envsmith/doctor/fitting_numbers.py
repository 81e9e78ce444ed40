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
    before, behind = _factors(sentence[: word.start()]), _factors(sentence[word.end() :])
    if not before or not behind:
        return ""
    dividend, divisor = math.prod(before[-1]), math.prod(behind[0])
    if word["into"]:
        dividend, divisor = divisor, dividend
    if not 1 < divisor < _LARGEST or not 0 < dividend < _LARGEST or dividend % divisor == 0:
        return ""
    divisors = [str(n) for n in range(1, dividend + 1) if dividend % n == 0][:_MOST_DIVISORS]
    near = [str(n) for n in (dividend // divisor * divisor, (dividend // divisor + 1) * divisor) if n]
    choices = f"take one of these for {divisor}, or {' or '.join(near)} for {dividend}"
    return f"{dividend} can be divided by {', '.join(divisors)}, not by {divisor}: {choices}"


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
    expected, parts = int(product["whole"]), [int(n) for n in re.findall(r"\d+", product["parts"])]
    total = math.prod(parts)
    if total == expected:
        return ""
    names = re.findall(r"\w+", product["names"] or "")
    choices = [f"{product['name'] or 'the left side'} {total}"]
    for name, part in zip(names, parts, strict=False):
        factor = total // part if part else 0
        if factor and expected % factor == 0 and expected >= factor:
            choices.append(f"{name} {expected // factor}")
    return f"{' * '.join(map(str, parts))} is {total}, not {expected}: {' or '.join(choices)}"


def parts_between(saved: str, own: str) -> int:
    """Return into how many parts one of two shapes is divided along one side for the other, 0 for other shapes."""
    saved_sides, own_sides = ([int(n) for n in re.findall(r"\d+", shape)] for shape in (saved, own))
    sides = [(a, b) for a, b in zip(saved_sides, own_sides, strict=False) if a != b]
    if len(saved_sides) != len(own_sides) or len(sides) != 1:
        return 0
    small, large = sorted(sides[0])
    return large // small if small > 0 and large % small == 0 else 0
