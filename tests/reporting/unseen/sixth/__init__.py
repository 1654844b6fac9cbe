"""A sixth set: other languages, other launchers, other centres' words, and words that mislead."""
