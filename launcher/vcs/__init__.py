"""Git outside of the jails: running it on trusted repositories, worktrees, and what crosses from an agent's hands."""
