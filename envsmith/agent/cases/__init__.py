"""The operations that a case can name. Importing this package registers all of them."""

from envsmith.agent.cases import collectives, groups, layouts, messages, timing
from envsmith.agent.cases.kit import OPERATIONS

__all__ = ["OPERATIONS", "collectives", "groups", "layouts", "messages", "timing"]
