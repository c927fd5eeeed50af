"""What a service does to have its models on disk and known: follows the catalog, fetches, verifies, reports."""
