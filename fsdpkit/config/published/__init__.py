"""What a centre publishes, as its users read it: verified before a byte of it is used.

`index` says what lies where, `signature` asks ssh-keygen, `memory` remembers what this user has
seen, `centre` puts the three together, `choosing` finds the version for a channel or a pin. The
other side, which writes all this, is `fsdpkit.publishing`.
"""
