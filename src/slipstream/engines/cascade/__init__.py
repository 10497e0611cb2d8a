"""Routes between a small and a large model. They are lossy, and every output says so."""
