"""Causes: what the training itself says of its numbers, its settings and its code."""

from __future__ import annotations

from fsdpkit.errors import ConfigError, NodeError, NotFoundError, UsageError
from fsdpkit.failures.cause import RESUME, Cause
from fsdpkit.failures.patterns import pattern

NAN_LOSS = Cause(
    "nan-loss",
    "{who} computed NaN or infinite values: {words}",
    "Lower training.optimizer.lr, look at the data of that step, or skip such steps: --set "
    "training.non_finite=skip. " + RESUME,
    elsewhere="Lower the learning rate, clip the gradients (torch.nn.utils.clip_grad_norm_), or "
    "look at the data of that step. " + RESUME,
    again="no, the same data gives the same result",
    patterns=(
        pattern(("is not finite, ", "is not finite in "), "our trainer, on a GPU as well"),
        pattern(
            ("nan", "NaN", "inf", "Inf", "finite"),
            "what trainers, torch and its anomaly detection say",
            quoted=True,
            line=r"(?i)\b(?:loss(?:es)?|grad\w*|norm|weights?|activations?|logits?|outputs?|"
            r"probability tensor|invalid values|result|params?|parameters?|backward\w*)\b"
            r".{0,80}?(?<![\w.])(?:nans?|infs?|infinit\w+|non-?finite|not finite)\b"
            r"|\b(?:nan|inf|non-?finite)s? (?:\w+ ){0,3}"
            r"(?:in|loss|grad\w*|found|detected|encountered)\b",
        ),
        pattern(
            "but found invalid values",
            "torch.distributions, of parameters that are no numbers",
        ),
        pattern(
            ("loss scale", "Loss scale"),
            "DeepSpeed, fairseq, of a scaler that can go no lower",
            line=r"(?i)(?:minimum loss scale|loss scale already at minimum)",
        ),
    ),
)

SETTINGS = Cause(
    "settings",
    "The settings do not fit: {who}: {words}",
    "Correct them and submit again.",
    retry="settings",
    again="not until they are corrected",
    statuses=frozenset(
        error.exit_code for error in (UsageError, ConfigError, NotFoundError, NodeError)
    ),
    patterns=(
        pattern(
            ("ConfigError: ", "UsageError: ", "NotFoundError: "),
            "our trainer",
            line=r"^(?:fsdpkit\.errors\.)?(?:ConfigError|UsageError|NotFoundError): ",
        ),
    ),
)

WRONG_WORLD = Cause(
    "wrong-world",
    "The ranks did not train together: {who}: {words}",
    "Let the script take rank, size and address from the variables that torchrun sets: "
    "init_process_group() without them; in Lightning, devices and num_nodes of the job, or "
    'devices="auto". For a script that starts its own workers: launch.ranks_per_node = 1.',
    retry="settings",
    again="not until the script is corrected",
)

EXCEPTION = Cause(
    "exception",
    "{who} failed: {words}",
    "Read the traceback: fsdpkit logs {run} --errors",
)
