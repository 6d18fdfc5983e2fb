"""The pipelines that are broken here."""

from __future__ import annotations

__all__ = ["GROUP", "TOPIC", "consumer", "daemon", "relay"]

TOPIC = "orders"
GROUP = "takers"


def daemon(name: str, *pipelines: str, bootstrap_servers: str, dsn: str) -> str:
    """A configuration with these pipelines."""
    return "\n".join(
        [
            f"daemon: {{name: {name}, drain_timeout: 10s}}",
            "connections:",
            f'  shop: {{type: postgres, dsn: "{dsn}", statement_timeout: 5s}}',
            f'  main: {{type: kafka, bootstrap_servers: ["{bootstrap_servers}"]}}',
            "pipelines:",
            *pipelines,
        ]
    )


def relay() -> str:
    """Pipeline `outbox`, with leases and deadlines that a short run sees the end of."""
    return """
  outbox:
    outbox: {connection: shop, lease: 3s}
    publish: {connection: main, send_deadline: 10s}
"""


def consumer(topic: str = TOPIC, *, handler: str = "take_or_refuse") -> str:
    """Pipeline `taker`: refused records become letters, an outage of the handler's database pauses."""
    return f"""
  taker:
    consume: {{connection: main, topics: [{topic}], group: {GROUP}, decode: text, session_timeout: 6s, rebalance_timeout: 20s, concurrency: 32, max_pending: 1000}}
    handler: {{type: python, target: "tests.chaos.handlers:{handler}"}}
    errors:
      retry: {{attempts: 3, initial: 50ms, jitter: none}}
      outage: {{probe_every: 1s}}
      rules:
        - {{when: {{exception: tests.chaos.handlers.NotWanted}}, then: dead_letter}}
        - {{when: {{exception: [ConnectionError, OSError, TimeoutError, asyncpg.exceptions._base.InterfaceError]}}, then: pause}}
        - {{when: {{sqlstate: ["08", "57P", "53", "25006"]}}, then: pause}}
    dead_letters:
      chain:
        - {{type: postgres, connection: shop, deadline: 2s}}
        - {{type: kafka, connection: main, topic: "{{topic}}.dlq", deadline: 2s}}
"""
