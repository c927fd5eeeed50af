"""How allm is deployed: a Helm chart, and the kustomize base and components that are rendered from it."""
