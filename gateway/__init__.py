"""The gateway: Envoy's configuration, rendered from one template, and what it takes to run and drain it."""
