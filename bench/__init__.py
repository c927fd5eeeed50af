"""Closed-loop load against OpenAI-compatible endpoints, and allm side by side with its peers."""
