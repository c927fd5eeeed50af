"""The authorizer next to the gateway: checks the API key and scopes of every request. It stores keys as hashes only."""
