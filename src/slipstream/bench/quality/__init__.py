"""Scores of answers, and the sandbox in which the code of an answer runs."""
