"""The KV cache, its rows and the prefixes it keeps."""
