"""A third set, of which the rules' writers saw nothing while they wrote the rules."""
