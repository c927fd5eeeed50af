"""The gateway: Envoy's configuration, rendered from one template, and the code that runs and drains Envoy."""
