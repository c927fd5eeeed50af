"""Attacks on a running allm, each an async function that returns what the attacker saw."""
