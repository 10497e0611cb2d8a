"""Drafting with the target's own weights, without some of its attention and MLP blocks."""
