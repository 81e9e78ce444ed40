"""Which symbols belong to torch: what an extension needs of them only torch can provide.

Templates of the standard library, pybind11 and the libraries that torch links in are exported by torch too, but an
extension brings its own. Measured over the compiled wheels of the package index, no extension needs one of those from
torch.
"""

from __future__ import annotations

import re

_NAMESPACES = frozenset({"c10", "at", "torch", "caffe2", "c10d"})
# Names that C code and the stable interface of torch have.
_C_NAME = re.compile(r"_?(?:THP|THC|TH_)|aoti_torch_|torch_|c10_|AOTI")
# Tables of virtual functions, type information and guards of a class stand before its name, as do offsets of thunks.
_PREFIX = re.compile(r"_Z(?:T[VTISFJW]|G[VR]|T[hv](?:n?\d+_)+|Tc(?:[hv](?:n?\d+_)+)+)?Z*")
_NESTED = re.compile(r"N[rVK]*[RO]?(\d{1,4})(?!\d)")
_PLAIN = re.compile(r"(\d{1,4})(?!\d)")


def is_torch_symbol(symbol: str) -> bool:
    """Return whether a symbol is one of torch's own: C++ names in its namespaces, and its C names."""
    prefix = _PREFIX.match(symbol)
    if not prefix:
        return _C_NAME.match(symbol) is not None
    nested = _NESTED.match(symbol, prefix.end())
    plain = nested or _PLAIN.match(symbol, prefix.end())
    if not plain:
        return False
    name = symbol[plain.end() : plain.end() + int(plain[1])]
    return name in _NAMESPACES if nested else _C_NAME.match(name) is not None
