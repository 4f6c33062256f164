@MF-001 @MF-002 @MF-003 @MF-004 @MF-005
Feature: Worktrees flow through the workflow

  Background:
    Given a repository with the submodules "lib, doc"
    And an orchestrator in a worktree of its own

  Scenario: From the orchestrator's node to requests of requests
    When the orchestrator sends "PlanningOrchestratorRequest"
    And the receiver sends "PlanningAgentRequests"
    Then "the receiver" is told the orchestrator's worktree with "lib, doc"

  @MF-006 @MF-007 @MF-008
  Scenario: Submodules are part of it
    Then "the orchestrator" is told its own worktree with "lib, doc"

  Scenario Outline: Agents of a dispatch get worktrees of their own
    Given the "<family>" agents "one, two" in worktrees of their own
    Then "one" is told its own worktree with "lib, doc"
    And "two" is told its own worktree with "lib, doc"

    Examples:
      | family    |
      | Ticket    |
      | Planning  |
      | Discovery |
