"""The supervisor: sessions that live in a service, its store, its API, and its place under systemd."""
