"""Compiled packages: everything the next start of a model needs, in one file."""
