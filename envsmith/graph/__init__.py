"""The version graph: YAML -> values -> networkx.

>>> import envsmith.graph.load
>>> graph = envsmith.graph.network.load()  # doctest: +SKIP
>>> graph.out_edges(("torch", "2.9.1+cu128"), data=True)  # doctest: +SKIP
"""
