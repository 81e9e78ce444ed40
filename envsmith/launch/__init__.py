"""A launch of ranks: watched from outside, and judged by what its ranks left."""
