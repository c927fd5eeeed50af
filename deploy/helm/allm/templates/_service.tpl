{{/*
Deployment, Service and PodDisruptionBudget of a text, audio or image service.
Call: (dict root kind name values group): kind is text, audio or image; name that of the objects; group a text group, or empty.
*/}}
{{- define "allm.service" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $gpu := gt (int $values.gpu.count) 0 -}}
{{- if and (eq (toString $values.rollout.maxSurge) "0") (eq (toString $values.rollout.maxUnavailable) "0") -}}
{{- fail (printf "rollout of %s: maxSurge and maxUnavailable are both 0, so no Pod could ever be replaced" .name) -}}
{{- end -}}
{{- $scaled := and (ne $root.Values.autoscaling.kind "none") (gt (int $values.scale.max) 0) -}}
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
    metadata:
      labels:
        {{- include "allm.labels" (list $root .kind) | nindent 8 }}
        allm/group: {{ .group | default "default" }}
    spec:
      {{- include "allm.pod" (dict "root" $root "id" 10001) | nindent 6 }}
      terminationGracePeriodSeconds: {{ include "allm.graceSeconds" $root }}
      {{- if and $gpu $values.gpu.runtimeClassName }}
      runtimeClassName: {{ $values.gpu.runtimeClassName }}
      {{- end }}
      {{- if $gpu }}
      {{- $tolerations := append $values.tolerations (dict "key" $values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
      {{- $values = mergeOverwrite (deepCopy $values) (dict "tolerations" $tolerations) }}
      {{- end }}
      {{- include "allm.placement" (dict "values" $values "labels" (include "allm.serviceSelector" .)) | nindent 6 }}
      containers:
        - name: {{ .kind }}
          image: {{ include "allm.image" (list $root (ternary (printf "%s-cuda" .kind) .kind $gpu)) }}
          imagePullPolicy: {{ $root.Values.container.pullPolicy }}
          command: [python, -m, services.{{ .kind }}]
          {{- include "allm.container" $root | nindent 10 }}
          env:
            - {name: ALLM_LISTEN, value: "0.0.0.0:50051"}
            - {name: ALLM_HEALTH_LISTEN, value: "0.0.0.0:50052"}
            - {name: ALLM_METRICS_PORT, value: "9464"}
            - {name: ALLM_CATALOG, value: "{{ $root.Release.Name }}-catalog:50050"}
            - {name: ALLM_HOME, value: /var/lib/allm}
            - {name: HOME, value: /var/lib/allm}
            - {name: ALLM_MODELS_DIR, value: /models}
            - {name: ALLM_MODEL_ROOTS, value: "/models,/model-images"}
            - {name: ALLM_DEVICE, value: {{ ternary "cuda" "cpu" $gpu }}}
            {{- with $values.preload }}
            - {name: ALLM_PRELOAD, value: {{ join "," . | quote }}}
            {{- end }}
            {{- if eq .kind "image" }}
            - {name: ALLM_IMAGE_FOLDER, value: /pictures}
            - {name: ALLM_PUBLIC_URL, value: {{ include "allm.publicUrl" $root | quote }}}
            {{- end }}
            {{- if and (eq .kind "text") $root.Values.textGroups }}
            - {name: ALLM_TEXT_GROUP_MODELS, value: {{ include "allm.groupModels" $root | quote }}}
            {{- end }}
            {{- with .group }}
            - {name: ALLM_TEXT_GROUP, value: {{ . }}}
            {{- end }}
            {{- include "allm.redisEnv" $root | indent 12 }}
            {{- include "allm.hubEnv" $root | indent 12 }}
            {{- include "allm.env" (dict "root" $root "env" $values.env) | nindent 12 }}
          ports:
            - {name: grpc, containerPort: 50051}
            - {name: health, containerPort: 50052}
            - {name: metrics, containerPort: 9464}
          # Passes once the catalog has been heard and what is to be preloaded is loaded.
          startupProbe:
            grpc: {port: 50052, service: startup}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: {{ ceil (divf $values.startupSeconds 5) | int }}
          readinessProbe:
            grpc: {port: 50052, service: readiness}
            periodSeconds: 5
            timeoutSeconds: 5
          livenessProbe:
            grpc: {port: 50052, service: liveness}
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 6
          {{- include "allm.lifecycle" $root | nindent 10 }}
          resources:
            requests: {{ toJson $values.resources.requests }}
            {{- $limits := deepCopy ($values.resources.limits | default dict) }}
            {{- if $gpu }}
            {{- $limits = set $limits $values.gpu.resource $values.gpu.count }}
            {{- end }}
            limits: {{ toJson $limits }}
          volumeMounts:
            - {name: state, mountPath: /var/lib/allm}
            - {name: tmp, mountPath: /tmp}
            - {name: models, mountPath: /models}
            {{- if $gpu }}
            - {name: shm, mountPath: /dev/shm}
            {{- end }}
            {{- if eq .kind "image" }}
            - {name: pictures, mountPath: /pictures}
            {{- end }}
            {{- include "allm.modelImageMounts" $root | indent 12 }}
            {{- include "allm.secretMounts" $root | indent 12 }}
      volumes:
        - name: state
          emptyDir: {}
        - name: tmp
          emptyDir: {}
        {{- if eq $root.Values.modelStorage.kind "pvc" }}
        - name: models
          persistentVolumeClaim: {claimName: {{ include "allm.modelClaim" $root }}}
        {{- else }}
        - name: models
          emptyDir: {sizeLimit: {{ $root.Values.modelStorage.sizeLimit }}}
        {{- end }}
        {{- if $gpu }}
        # Processes that share a model on several GPUs talk through it.
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: 2Gi}
        {{- end }}
        {{- if eq .kind "image" }}
        {{- if $root.Values.image.sharedFolder.enabled }}
        - name: pictures
          persistentVolumeClaim: {claimName: {{ $root.Release.Name }}-pictures}
        {{- else }}
        - name: pictures
          emptyDir: {sizeLimit: {{ $root.Values.image.sharedFolder.size }}}
        {{- end }}
        {{- end }}
        {{- include "allm.modelImageVolumes" $root | indent 8 }}
        {{- include "allm.secretVolumes" $root | indent 8 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
spec:
  # Headless: the gateway balances by itself, and wants the address of every Pod.
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
      {{- include "allm.serviceSelector" . | nindent 6 }}
{{- end }}

{{/* Selects the Pods of one Deployment. Call: as allm.service. */}}
{{- define "allm.serviceSelector" -}}
{{- include "allm.selector" (list .root .kind) }}
allm/group: {{ .group | default "default" }}
{{- end }}
