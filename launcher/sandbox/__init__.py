"""Sandboxes for programmes: one live jail, and many commands in it."""
