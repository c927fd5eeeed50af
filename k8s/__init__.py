"""Kubernetes deployment of allm: a Helm chart, and the kustomize base and components rendered from it."""
