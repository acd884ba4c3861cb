"""tablecast."""
