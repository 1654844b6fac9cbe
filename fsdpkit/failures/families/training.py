"""Causes: what the training itself says of its numbers, its settings and its code."""

from __future__ import annotations

from fsdpkit.errors import ConfigError, NodeError, NotFoundError, UsageError
from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern

NAN_LOSS = Cause(
    "nan-loss",
    "{who} computed NaN or infinite values: {words}",
    again="no, the same data gives the same result",
    patterns=(
        pattern(
            "is not finite,  | is not finite in  | but found invalid values | "
            "inimum loss scale | oss scale already at minimum",
            "our trainer, on a GPU as well; torch.distributions, of parameters that are no "
            "numbers; DeepSpeed and fairseq, of a scaler that can go no lower",
        ),
        pattern(
            "nan | NaN | inf | Inf | finite",
            "what trainers, torch and its anomaly detection say",
            quoted=True,
            line=r"(?i)\b(?:loss(?:es)?|grad\w*|norm|weights?|activations?|logits?|outputs?|"
            r"probability tensor|invalid values|result|params?|parameters?|backward\w*)\b"
            r".{0,80}?(?<![\w.])(?:nans?|infs?|infinit\w+|non-?finite|not finite)\b"
            r"|\b(?:nan|inf|non-?finite)s? (?:\w+ ){0,3}"
            r"(?:in|loss|grad\w*|found|detected|encountered)\b",
        ),
    ),
)

SETTINGS = Cause(
    "settings",
    "The settings do not fit: {who}: {words}",
    retry="settings",
    again="not until they are corrected",
    statuses=frozenset(
        error.exit_code for error in (UsageError, ConfigError, NotFoundError, NodeError)
    ),
    patterns=(
        pattern(
            "ConfigError:  | UsageError:  | NotFoundError: ",
            "our trainer",
            line=r"^(?:fsdpkit\.errors\.)?(?:ConfigError|UsageError|NotFoundError): ",
        ),
        pattern("Duplicate GPU detected", "NCCL, of two ranks that chose one GPU"),
    ),
)

WRONG_WORLD = Cause(
    "wrong-world",
    "The ranks did not train together: {who}: {words}",
    retry="settings",
    again="not until the script is corrected",
)

EXCEPTION = Cause(
    "exception",
    "{who} failed: {words}",
)
