{{/*
Deployment, Service and PodDisruptionBudget of a text, audio or image service; with multiNode a LeaderWorkerSet in the place
of the Deployment.
Call: (dict root kind name values group): kind is text, audio or image; name that of the objects; group a text group, or empty.
*/}}
{{- define "allm.service" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- if and (eq (toString $values.rollout.maxSurge) "0") (eq (toString $values.rollout.maxUnavailable) "0") -}}
{{- fail (printf "rollout of %s: maxSurge and maxUnavailable are both 0, so no Pod could ever be replaced" .name) -}}
{{- end -}}
{{- $scaled := and (ne $root.Values.autoscaling.kind "none") (gt (int $values.scale.max) 0) -}}
{{- if $values.multiNode -}}
{{- include "allm.nodes" (merge (dict "scaled" $scaled) .) }}
{{- else -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
spec:
  {{- if not $scaled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  # Fetching and loading count until the startup probe has passed.
  progressDeadlineSeconds: {{ add $values.startupSeconds 300 }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: {{ $values.rollout.maxSurge }}, maxUnavailable: {{ $values.rollout.maxUnavailable }}}
  selector:
    matchLabels:
      {{- include "allm.serviceSelector" . | nindent 6 }}
  template:
    {{- include "allm.servicePod" . | nindent 4 }}
{{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
spec:
  # Headless, because the gateway does the load balancing and needs the address of every Pod.
  clusterIP: None
  selector:
    {{- include "allm.serviceSelector" . | nindent 4 }}
  ports:
    - {name: grpc, port: 50051, targetPort: grpc}
    - {name: metrics, port: 9464, targetPort: metrics}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      # Machines that compute together cannot miss one.
      {{- include (ternary "allm.nodesSelector" "allm.serviceSelector" (not (empty $values.multiNode))) . | nindent 6 }}
{{- end }}

{{/* Selects the Pods of one Deployment. Call: as allm.service. */}}
{{- define "allm.serviceSelector" -}}
{{- include "allm.selector" (list .root .kind) }}
allm/group: {{ .group | default "default" }}
{{- end }}
