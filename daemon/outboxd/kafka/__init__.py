"""Adapters to Apache Kafka; the only importer of aiokafka."""
