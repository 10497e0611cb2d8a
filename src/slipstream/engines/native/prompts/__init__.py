"""Prompts: read piece by piece, and scored where their log-probabilities are wanted."""
