@header-resolution @FR-017
Feature: A session's id leads to its worktree

  Background:
    Given a repository with the submodules ""
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one" in worktrees of their own

  @US5.1 @US5.3
  Scenario: Known sessions
    Then the worktree of session "run" is that of "the orchestrator"
    And the worktree of session "run/dispatch/one" is that of "one"

  Scenario: Unknown and ended sessions
    Given the session of "one" has ended
    Then session "run/dispatch/one" has no worktree
    And session "run/dispatch/one/more" has no worktree
    And session "stranger" has no worktree
    And session "../run" has no worktree

  @EDGE-5
  Scenario: A worktree that was deleted during work
    Given the worktree of "one" is deleted
    When agent "one" does
      | operation | path       |
      | READ      | {one}/file |
      | WRITE     | {one}/file |
    Then all of it is denied
