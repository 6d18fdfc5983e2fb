"""Adapters to Postgres; the only importer of asyncpg."""
