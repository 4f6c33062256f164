"""The specification's stories and its merge flow, told in Gherkin, against real repositories and real jails."""

from pytest_bdd import scenarios

scenarios("worktree-sandbox")
