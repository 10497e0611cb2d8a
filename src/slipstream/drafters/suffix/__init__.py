"""Suffix decoding (arXiv 2411.04975): continues the longest suffix of the text, as it or earlier outputs did."""
