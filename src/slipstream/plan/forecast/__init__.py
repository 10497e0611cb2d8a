"""Forecasts: tau, tokens per second and speed-up before anything is deployed, with intervals."""
