@MF-009 @MF-010 @MF-011 @MF-012 @MF-013 @SM-MF-001 @SM-MF-003 @SM-MF-006
Feature: The trunk's work comes to the agents

  Background:
    Given a repository with the submodules "lib"
    And an orchestrator in a worktree of its own

  Scenario: Submodules come first
    Given the "Ticket" agents "one" in worktrees of their own
    And "the orchestrator" commits "trunk" to "lib/new"
    And "one" commits "mine" to "lib/own"
    When the results come in
    Then the result of "one" has arrived, and "lib" came before the rest
    And "lib/new" of "one" holds "trunk"

  Scenario: A conflict leaves the agent's worktree as it was
    Given the "Ticket" agents "one" in worktrees of their own
    And "the orchestrator" commits "trunk" to "file"
    And "one" commits "mine" to "file"
    When the results come in
    Then the result of "one" conflicts in "file" and moves nothing
    And "file" of "one" holds "mine"

  @EC-MF-003
  Scenario: Nothing new
    Given the "Ticket" agents "one" in worktrees of their own
    When the results come in
    Then the result of "one" brings nothing new

  @EC-MF-004
  Scenario: The trunk is gone
    Given the "Ticket" agents "one" in worktrees of their own
    And the worktree of "the orchestrator" is deleted
    When the results come in
    Then the result of "one" fails and moves nothing
