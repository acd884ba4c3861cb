"""The server, beside the servers that people would otherwise run."""
