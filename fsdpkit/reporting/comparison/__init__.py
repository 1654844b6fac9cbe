"""`fsdpkit compare`: runs beside one another, for a terminal, a page, or a program."""
