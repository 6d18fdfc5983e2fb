"""Loading, validation and reference of the configuration. The models stand beside what they configure."""

from outboxd.config.configuration import Configuration, PipelineSettings
from outboxd.config.load import load
from outboxd.config.origin import ConfigurationOrigin, Loaded
from outboxd.config.problems import ConfigurationInvalid, Place, Problem

__all__ = [
    "Configuration",
    "ConfigurationInvalid",
    "ConfigurationOrigin",
    "Loaded",
    "PipelineSettings",
    "Place",
    "Problem",
    "load",
]
