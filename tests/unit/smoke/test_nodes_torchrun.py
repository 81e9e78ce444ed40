"""The endpoint at which torchrun brings the nodes together."""

from __future__ import annotations

import pytest

from envsmith.errors import UsageError
from envsmith.smoke.nodes import Rendezvous


@pytest.mark.parametrize(
    "endpoint", ["", "n1", "n1:", ":1", "n1:0", "n1:65536", "n1:x", "-n:1", "a b:1", "n1:9" + "9" * 5000, "n1:²"]
)
def test_an_endpoint_that_is_not_host_and_port_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Rendezvous(endpoint=endpoint, nodes=3, ranks_per_node=1).parts()
