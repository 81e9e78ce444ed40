"""The operations that a case can name. Importing this package registers all of them."""

from envsmith.smoke.agent.cases import bandwidth, collectives, groups, layouts, messages
from envsmith.smoke.agent.kit import OPERATIONS

__all__ = ["OPERATIONS", "bandwidth", "collectives", "groups", "layouts", "messages"]
