"""Compares forecasts with measurements: `bench --forecast`."""
