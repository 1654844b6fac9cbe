"""Text in, token ids out: reading, tokenising and preparing what a model trains on. Never torch."""
