"""Turn CDK context into one frozen, validated ``AppConfig``; every refusal happens here."""

from stacks.config.app_config import AppConfig
from stacks.config.refusal import PREFIX, ConfigError

__all__ = ["PREFIX", "AppConfig", "ConfigError"]
