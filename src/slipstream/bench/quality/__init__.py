"""How good answers are, and the limited process in which the code of an answer runs."""
