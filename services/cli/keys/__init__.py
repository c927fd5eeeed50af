"""`allm keys`: the API keys that callers show to the gateway."""
