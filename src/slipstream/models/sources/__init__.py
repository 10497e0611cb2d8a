"""Where models come from: catalog, hub, folders and GGUF files."""
