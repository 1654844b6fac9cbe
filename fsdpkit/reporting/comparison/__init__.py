"""`fsdpkit compare`: runs side by side, for a terminal, a page, or a program."""
