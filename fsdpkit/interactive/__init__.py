"""For a person at a Python prompt or in a notebook: what waits, and shows how far it is."""
