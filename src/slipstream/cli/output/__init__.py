"""What several commands print: streamed text, JSON and lines of checks."""
