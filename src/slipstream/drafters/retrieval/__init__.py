"""Retrieval (REST, arXiv 2311.08252): continues the text as a corpus on disk did after the same tokens."""
