@MF-001 @MF-002 @MF-003 @MF-004 @MF-005
Feature: Worktrees flow through the workflow

  Background:
    Given a repository with the submodules "lib, doc"
    And an orchestrator in a worktree of its own

  @MF-006 @MF-007 @MF-008
  Scenario: From the orchestrator's node to requests of requests, submodules among it
    Then "the orchestrator" is told its own worktree with "lib, doc"
    When the orchestrator sends "PlanningOrchestratorRequest"
    And the receiver sends "PlanningAgentRequests"
    Then "the receiver" is told the orchestrator's worktree with "lib, doc"
