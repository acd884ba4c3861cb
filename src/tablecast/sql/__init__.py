"""Statements to commands and queries: parse, plan, execute. And the database that users meet."""
