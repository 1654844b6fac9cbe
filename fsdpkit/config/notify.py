"""`[notify]` of a job: who hears when it ends, fails or is queued again.

Slurm itself sends the mail, also where the whole node died. The command is called by the batch
shell, which then must still be alive; `fsdpkit/launching/notifying.py` says what it is told.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Text, doc

Event = Literal["end", "failure", "requeue", "idle"]


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`end`: the goal is reached. `failure`: over short of it. `requeue`: in the queue again.
    `idle`: no GPU computes, once an attempt; the command alone hears of it."""

    mail: Annotated[
        # MailProg takes it as a word of its command line.
        Annotated[str, Meta(pattern=r"^[^\s-]\S*$")] | None,
        Meta(description="Address to which Slurm sends mail; no spaces, no dash in front."),
    ] = None
    command: Annotated[
        list[Text],
        doc("Program and its arguments, started without a shell; it gets the event in variables."),
    ] = []
    on: Annotated[list[Event], doc("end, failure, requeue, idle.", min_length=1)] = msgspec.field(
        default_factory=lambda: ["end", "failure", "requeue", "idle"]
    )
    limit_s: Annotated[int, doc("Seconds after which the command is killed.", ge=1, le=600)] = 20
