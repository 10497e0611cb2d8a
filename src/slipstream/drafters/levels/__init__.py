"""Drafts that grow level by level: the candidates of a level are drawn, and the drafter reads them for the next."""
