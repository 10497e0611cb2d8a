"""The EAGLE drafter: a head on the target's hidden states."""
