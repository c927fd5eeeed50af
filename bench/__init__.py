"""Closed-loop load on OpenAI-compatible endpoints, and comparisons of allm with its peers."""
