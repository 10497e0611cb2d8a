"""OpenAI's API: requests, answers and streams."""
