"""A seventh set: what researchers at a centre meet most often, as real programs print it."""
