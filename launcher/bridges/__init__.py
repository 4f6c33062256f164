"""Where agents and editors speak their own protocols with Paddock: ACP, and MCP tools."""
