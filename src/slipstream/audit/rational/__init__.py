"""The rules in exact fractions, written a second time from the papers."""
