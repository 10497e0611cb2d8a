"""Folders of trained drafters: write, read, find, describe."""
