"""Drafters that read the target's hidden states at the end of a row and keep no cache: medusa, mlp, prophet."""
