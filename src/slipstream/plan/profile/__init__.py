"""Profiles: what was measured of a model and its drafters on one machine, as data to save, merge and read."""
