"""A fourth set, written after the rules had been changed for the third, and scored at once."""
