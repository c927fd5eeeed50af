{{/*
A text group whose models need the GPUs of several machines: each replica is a leader, which runs the text service and Ray's
head, and workers, which lend it their GPUs. Call: as allm.service, with scaled.
*/}}
{{- define "allm.nodes" -}}
{{- $root := .root -}}
{{- $values := .values -}}
# Its Pods find each other by a Service of the same name, which the LeaderWorkerSet's controller creates.
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ include "allm.nodesName" .name }}
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
  {{- with $values.multiNode.topologyKey }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . }}
  {{- end }}
spec:
  {{- if not .scaled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  # Workers and leader wait for each other.
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: {maxSurge: {{ $values.rollout.maxSurge }}, maxUnavailable: {{ $values.rollout.maxUnavailable }}}
  leaderWorkerTemplate:
    size: {{ $values.multiNode.size }}
    # A model that loses one of its parts must be reloaded everywhere.
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      {{- include "allm.servicePod" . | nindent 6 }}
    workerTemplate:
      {{- include "allm.workerPod" . | nindent 6 }}
{{ end }}

{{- define "allm.workerPod" -}}
{{- $root := .root -}}
{{- $values := .values -}}
metadata:
  labels:
    {{- include "allm.labels" (list $root "text-worker") | nindent 4 }}
    allm/group: {{ .group }}
spec:
  {{- include "allm.pod" (dict "root" $root "id" 10001) | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "allm.graceSeconds" $root }}
  {{- with $values.gpu.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- $tolerations := append $values.tolerations (dict "key" $values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
  {{- $placed := mergeOverwrite (deepCopy $values) (dict "tolerations" $tolerations) }}
  {{- include "allm.placement" (dict "values" $placed "labels" (include "allm.workerSelector" .)) | nindent 2 }}
  containers:
    - name: ray
      image: {{ include "allm.serviceImage" . }}
      imagePullPolicy: {{ $root.Values.container.pullPolicy }}
      command: {{ include "allm.workerCommand" . }}
      {{- include "allm.container" $root | nindent 6 }}
      env:
        - {name: ALLM_HOME, value: /var/lib/allm}
        - {name: HOME, value: /var/lib/allm}
        {{- include "allm.nodeEnv" . | nindent 8 }}
        {{- include "allm.processEnv" $root | nindent 8 }}
        {{- include "allm.givenEnv" (dict "root" $root "env" $values.env) | indent 8 }}
      ports:
        - {name: node, containerPort: 6380}
      # Ray's process listens once it has found the leader's; it exits, with the container, when it loses that.
      # It has gRPC's health service, which needs no token.
      startupProbe:
        grpc: {port: 6380}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ ceil (divf $values.startupSeconds 5) | int }}
      readinessProbe:
        grpc: {port: 6380}
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        grpc: {port: 6380}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      # It continues after SIGTERM until the leader has gone, without a limit.
      {{- include "allm.lifecycle" $root | nindent 6 }}
      resources:
        requests: {{ toJson $values.resources.requests }}
        limits: {{ set (deepCopy ($values.resources.limits | default dict)) $values.gpu.resource $values.gpu.count | toJson }}
      volumeMounts:
        - {name: state, mountPath: /var/lib/allm}
        - {name: tmp, mountPath: /tmp}
        - {name: models, mountPath: /models, readOnly: true}
        - {name: shm, mountPath: /dev/shm}
        {{- include "allm.modelImageMounts" $root | indent 8 }}
        {{- include "allm.nodeMounts" $values | indent 8 }}
  volumes:
    - name: state
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- include "allm.modelVolume" $root | nindent 4 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ include "allm.sharedMemory" $values }}}
    {{- include "allm.modelImageVolumes" $root | indent 4 }}
    {{- include "allm.nodeVolumes" $values | indent 4 }}
{{- end }}

{{- define "allm.leaderCommand" -}}
[python, -m, services.text.ray_node, leader, "--ip=$(VLLM_HOST_IP)", "--gpus={{ .values.gpu.count }}", "--nodes={{ .values.multiNode.size }}"]
{{- end }}

{{- define "allm.workerCommand" -}}
[python, -m, services.text.ray_node, worker, "--ip=$(VLLM_HOST_IP)", "--gpus={{ .values.gpu.count }}", "--leader=$(LWS_LEADER_ADDRESS)"]
{{- end }}

{{/* Settings with which leaders and workers find each other. Call: as allm.service. */}}
{{- define "allm.nodeEnv" -}}
- name: VLLM_HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if .values.multiNode.tokenSecret }}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /etc/allm/ray/token}
{{- end }}
{{- end }}

{{- define "allm.nodeMounts" -}}
{{- if (.multiNode | default dict).tokenSecret }}
- {name: ray-token, mountPath: /etc/allm/ray, readOnly: true}
{{- end }}
{{- end }}

{{- define "allm.nodeVolumes" -}}
{{- with (.multiNode | default dict).tokenSecret }}
- name: ray-token
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Differs from the name of the Service that the gateway calls, which has only the leaders that are ready. */}}
{{- define "allm.nodesName" -}}
{{ . }}-nodes
{{- end }}

{{/* Selects the workers of a group. Call: as allm.service. */}}
{{- define "allm.workerSelector" -}}
{{- include "allm.selector" (list .root "text-worker") }}
allm/group: {{ .group }}
{{- end }}

{{/* Selects leaders and workers of a group. Call: as allm.service, or a dict with root and group. */}}
{{- define "allm.nodesSelector" -}}
{{- include "allm.everything" .root }}
allm/group: {{ .group }}
{{- end }}
