"""Audit: is the output distributed exactly as the target alone would have it? Proofs, tests, replays."""
