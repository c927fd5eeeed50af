"""Model provisioning of a service: follows the catalog, fetches and verifies files, and reports status."""
