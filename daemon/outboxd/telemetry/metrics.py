"""Every metric instrument of outboxd, grouped by who writes it. Made once for a meter; counters start at zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outboxd.telemetry.configuration import ConfigurationInstruments
from outboxd.telemetry.consumer import ConsumerInstruments
from outboxd.telemetry.letters import LetterInstruments
from outboxd.telemetry.pipelines import PipelineInstruments
from outboxd.telemetry.plugins import PluginInstruments
from outboxd.telemetry.relay import RelayInstruments

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Instruments"]


class Instruments:
    """The instruments of one process."""

    __slots__ = ("configuration", "consumer", "letters", "pipelines", "plugins", "relay")

    def __init__(self, meter: Meter) -> None:
        self.relay = RelayInstruments(meter)
        self.consumer = ConsumerInstruments(meter)
        self.letters = LetterInstruments(meter)
        self.pipelines = PipelineInstruments(meter)
        self.plugins = PluginInstruments(meter)
        self.configuration = ConfigurationInstruments(meter)
