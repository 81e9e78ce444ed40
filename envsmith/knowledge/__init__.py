"""What is known, each fact with its evidence: the graph, names, symbols and ready wheels."""
