"""The policies: how much to draft in each cycle, by measured costs and acceptance."""
