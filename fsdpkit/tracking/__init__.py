"""`fsdpkit track`: what a run logged, sent to trackers from a machine that reaches them."""
