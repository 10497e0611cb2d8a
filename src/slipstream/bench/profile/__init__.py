"""Measures profiles: costs and acceptance of a model and its drafters on this machine."""
