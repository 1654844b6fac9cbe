"""fsdpkit on a laptop: each command runs on a login node, over OpenSSH.

Both ends are here. On the laptop: `hosts` (which login node, and what a person says of it),
`connection` (ssh, one connection for many commands), `tree` (the work tree that a submission
sends), `commands` (what each command sends and brings back). On the login node: `serving`, behind
`fsdpkit _remote`. `protocol` is what they say to each other. Python, click and ssh are all that the
laptop needs; nothing here imports torch, msgspec or jinja2.
"""
