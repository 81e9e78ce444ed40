from __future__ import annotations

import pytest

from envsmith.knowledge.symbols.owned import is_torch_symbol


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN3c105ErrorC2ENS_14SourceLocationESs",
        "_ZNK2at6Tensor4sizeEl",
        "_ZNKR3c106IValue10toBoolListEv",
        "_ZTIN5torch8autograd4NodeE",
        "_ZTVN2at10TensorBaseE",
        "_ZGVZN3c104cuda7currentEvE1x",
        "_ZThn16_N5torch3jit6ModuleD1Ev",
        "_ZN4c10d12ProcessGroup4sendEv",
        "_Z16THPVariable_WrapN2at10TensorBaseE",
        "THPVariableClass",
        "aoti_torch_abi_version",
        "torch_library_init_def",
    ],
)
def test_names_of_torch_are_its_own(symbol):
    assert is_torch_symbol(symbol)


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZNSt6vectorIN2at6TensorESaIS1_EE9push_backERKS1_",
        "_ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb",
        "_ZN10c10_others3fooEv",
        "_ZN3atx3fooEv",
        "PyObject_Call",
        "cudaMalloc",
        "dgemm_",
        "_Z3fooN2at6TensorE",
        "_ZN99999999999999999999at",
        "_Z",
        "",
    ],
)
def test_names_that_an_extension_brings_or_others_own_are_not(symbol):
    assert not is_torch_symbol(symbol)
