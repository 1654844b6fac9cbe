"""Reads runs back: how far they are, what happened, why they ended, and what that cost."""
