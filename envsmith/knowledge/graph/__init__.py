"""The version graph: ``matrix/*.yaml`` to values to networkx.

>>> from envsmith.knowledge.graph.load import knowledge
>>> from envsmith.knowledge.graph.network import to_network
>>> graph = to_network(knowledge())
>>> sorted({data["kind"] for _, _, data in graph.out_edges("rule:deepspeed-elastic-log", data=True)})
['conflicts']
"""
