"""Lossy verification on the device."""
