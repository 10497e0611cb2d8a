"""`slipstream transcribe`."""
