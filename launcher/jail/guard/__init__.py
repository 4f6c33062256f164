"""The guard: calls that Landlock does not cover, performed for the command by the process above it."""
