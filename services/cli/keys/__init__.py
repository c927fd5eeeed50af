"""`allm keys`: the API keys that callers send to the gateway."""
