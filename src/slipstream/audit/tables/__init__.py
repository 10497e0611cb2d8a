"""The audit on probability tables: every outcome of the shipped loop against the target's exact law."""
