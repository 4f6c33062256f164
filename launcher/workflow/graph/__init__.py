"""The nodes of a workflow, who made whom, and in which worktree each works."""
