"""The work tree that a script lies in: what git says of it, and which of its files count."""
