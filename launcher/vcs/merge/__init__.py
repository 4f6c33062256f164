"""The work of many agents, merged: objects first, submodules before the main worktree, refs at the very end."""
