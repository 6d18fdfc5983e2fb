"""Loading, validation and reference of the configuration. The models stand beside what they configure."""

from outboxd.config.configuration import Configuration, PipelineSettings
from outboxd.config.load import load
from outboxd.config.problems import ConfigurationInvalid, Place, Problem

__all__ = ["Configuration", "ConfigurationInvalid", "PipelineSettings", "Place", "Problem", "load"]
