"""The authorizer beside the gateway: who shows which key, and may do what. It knows all keys by their hashes."""
