"""Monitoring as code: the dashboard, the alerts, and their documentation pages."""
