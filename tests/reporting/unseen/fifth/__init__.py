"""A fifth set: tickets of a support desk, ways of logging, and kin of what was missed there."""
