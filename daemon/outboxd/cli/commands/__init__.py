"""The commands, one module each; `outboxd.cli.app` says what such a module has."""
