"""Provider specifications and the strategies that translate a worktree for them."""
