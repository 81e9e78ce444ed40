"""What the ranks of a launch left behind, and which of them failed first: one reading for smoke, run and doctor."""
