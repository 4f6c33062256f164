@ticket-worktree-creation @US7.1 @US7.2 @US7.3 @FR-005 @FR-006 @FR-007 @SC-007
Feature: Every ticket has a worktree

  Background:
    Given a repository with the submodules "lib"
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one, two" in worktrees of their own

  @FR-008 @FR-009
  Scenario: Beside the original, told in the request and to the orchestrator; agents do not touch one another's work
    Then "one" is told its own worktree with "lib"
    And "two" is told its own worktree with "lib"
    And the worktrees lie beside the original
    When agent "one" does
      | operation | path |
      | WRITE     | file |
    Then all of it is allowed
    When agent "two" does
      | operation | path |
      | READ      | file |
    Then all of it is allowed
    And only the worktree of "one" has changed
    When the prompt of "TICKET_ORCHESTRATOR" is made
    Then it names the orchestrator's worktree
