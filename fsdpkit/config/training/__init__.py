"""What the reference T5 trainer can be told, and which combinations cannot work."""

from fsdpkit.config.training.automatic import for_device
from fsdpkit.config.training.checkpoint import CheckpointSettings
from fsdpkit.config.training.data import DataSettings
from fsdpkit.config.training.model import ModelSettings
from fsdpkit.config.training.optimizer import OptimizerSettings, ParameterGroup
from fsdpkit.config.training.presets import PRESETS, PresetName
from fsdpkit.config.training.problems import problems
from fsdpkit.config.training.settings import (
    DebugSettings,
    EvaluationSettings,
    MetricsSettings,
    PrecisionSettings,
    TrainingSettings,
    load_settings,
)
from fsdpkit.config.training.sharding import ShardingSettings

__all__ = [
    "PRESETS",
    "CheckpointSettings",
    "DataSettings",
    "DebugSettings",
    "EvaluationSettings",
    "MetricsSettings",
    "ModelSettings",
    "OptimizerSettings",
    "ParameterGroup",
    "PrecisionSettings",
    "PresetName",
    "ShardingSettings",
    "TrainingSettings",
    "for_device",
    "load_settings",
    "problems",
]
