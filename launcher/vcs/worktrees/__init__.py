"""Worktrees for agents: created, listed, inspected, repaired and removed. Start reading at `worktree_service`."""
