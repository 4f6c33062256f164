"""Worktrees for agents: made, kept, looked at, repaired and removed. `service` is the way in."""
