"""The documentation, and what makes parts of it from the code."""
