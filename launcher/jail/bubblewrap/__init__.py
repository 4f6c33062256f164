"""Namespaces made by bubblewrap, where Landlock is missing: what it is told, what it starts, how it is joined."""
