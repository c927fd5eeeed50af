"""Monitoring as code: the dashboard, the alerts, and the documentation pages that explain both."""
