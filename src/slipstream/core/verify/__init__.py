"""The verification rules: pure functions from target and draft probabilities and random draws to verdicts."""
