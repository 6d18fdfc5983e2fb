"""Public fakes, conformance suites and a daemon in process, for tests of plugins."""
