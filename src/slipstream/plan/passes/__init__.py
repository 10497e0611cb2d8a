"""The passes: small pure functions from a plan to a plan, and the levels that run several of them."""
