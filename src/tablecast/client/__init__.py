"""The SDK."""
