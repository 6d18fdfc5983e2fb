"""Kafka in memory: one cluster through which producers, senders, members of groups and questions all go.

Import `FakeCluster` from `outboxd.testing.fakes.kafka.cluster`.
"""
