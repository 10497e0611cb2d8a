"""Runs of several cycles in one call."""
