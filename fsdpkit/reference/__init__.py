"""The pages of `docs/` that say what the code says: commands, keys, statuses, variables, files, and
one page a cause of failure.

`python -m fsdpkit.reference` writes them; a test finds them out of date. Nothing else imports this
room, and nothing in it decides anything.
"""
