{{/* The Pods of a text, audio or image service; of a multiNode group the leaders. Call: as allm.service. */}}
{{- define "allm.servicePod" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $gpu := gt (int $values.gpu.count) 0 -}}
{{- $shared := and $root.Values.image.enabled $root.Values.image.sharedFolder.enabled -}}
{{- /* A text service reads pictures by their url from the folder of the image service, except in multiNode groups: the
       kustomize component for these would need those for shared files and the ingress. */ -}}
{{- $reads := and (eq .kind "text") (not $values.multiNode) -}}
{{- $pictures := or (eq .kind "image") (and $reads $shared) -}}
metadata:
  labels:
    {{- include "allm.labels" (list $root .kind) | nindent 4 }}
    allm/group: {{ .group | default "default" }}
spec:
  {{- include "allm.pod" (dict "root" $root "id" 10001) | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "allm.graceSeconds" $root }}
  {{- if and $gpu $values.gpu.runtimeClassName }}
  runtimeClassName: {{ $values.gpu.runtimeClassName }}
  {{- end }}
  {{- if $gpu }}
  {{- $tolerations := append $values.tolerations (dict "key" $values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
  {{- $values = mergeOverwrite (deepCopy $values) (dict "tolerations" $tolerations) }}
  {{- end }}
  {{- include "allm.placement" (dict "values" $values "labels" (include "allm.serviceSelector" .)) | nindent 2 }}
  containers:
    - name: {{ .kind }}
      image: {{ include "allm.serviceImage" . }}
      imagePullPolicy: {{ $root.Values.container.pullPolicy }}
      {{- if $values.multiNode }}
      command: {{ include "allm.leaderCommand" . }}
      {{- else }}
      command: [python, -m, services.{{ .kind }}]
      {{- end }}
      {{- include "allm.container" $root | nindent 6 }}
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
        {{- if $pictures }}
        - {name: ALLM_IMAGE_FOLDER, value: /pictures}
        {{- end }}
        {{- if or (eq .kind "image") $reads }}
        - {name: ALLM_PUBLIC_URL, value: {{ include "allm.publicUrl" $root | quote }}}
        {{- end }}
        {{- if and (eq .kind "text") $root.Values.textGroups }}
        - {name: ALLM_TEXT_GROUP_MODELS, value: {{ include "allm.groupModels" $root | quote }}}
        {{- end }}
        {{- with .group }}
        - {name: ALLM_TEXT_GROUP, value: {{ . }}}
        {{- end }}
        {{- if $values.multiNode }}
        {{- include "allm.nodeEnv" . | nindent 8 }}
        - {name: ALLM_RAY_ADDRESS, value: "$(VLLM_HOST_IP):6379"}
        {{- end }}
        {{- include "allm.redisEnv" $root | indent 8 }}
        {{- include "allm.hubEnv" $root | indent 8 }}
        {{- include "allm.env" (dict "root" $root "env" $values.env "role" .kind) | nindent 8 }}
      ports:
        - {name: grpc, containerPort: 50051}
        - {name: health, containerPort: 50052}
        - {name: metrics, containerPort: 9464}
      # Passes once the service has the catalog's list and has loaded the models to preload.
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
      {{- include "allm.lifecycle" $root | nindent 6 }}
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
        {{- if or $gpu $values.vllm }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- if $pictures }}
        - {name: pictures, mountPath: /pictures{{ if eq .kind "text" }}, readOnly: true{{ end }}}
        {{- end }}
        {{- include "allm.modelImageMounts" $root | indent 8 }}
        {{- include "allm.secretMounts" (dict "root" $root "role" .kind) | indent 8 }}
        {{- include "allm.nodeMounts" $values | indent 8 }}
  volumes:
    - name: state
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- include "allm.modelVolume" $root | nindent 4 }}
    {{- if or $gpu $values.vllm }}
    # Processes that share a model on several GPUs communicate through it.
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ include "allm.sharedMemory" $values }}}
    {{- end }}
    {{- if $pictures }}
    {{- if $shared }}
    - name: pictures
      persistentVolumeClaim: {claimName: {{ $root.Release.Name }}-pictures}
    {{- else }}
    - name: pictures
      emptyDir: {sizeLimit: {{ $root.Values.image.sharedFolder.size }}}
    {{- end }}
    {{- end }}
    {{- include "allm.modelImageVolumes" $root | indent 4 }}
    {{- include "allm.secretVolumes" (dict "root" $root "role" .kind) | indent 4 }}
    {{- include "allm.nodeVolumes" $values | indent 4 }}
{{- end }}

{{/* The image of a service, by its runtimes and GPU support. Call: as allm.service. */}}
{{- define "allm.serviceImage" -}}
{{- $name := ternary (printf "%s-vllm" .kind) .kind (or .values.vllm (not (empty .values.multiNode)) | default false) -}}
{{- include "allm.image" (list .root (ternary (printf "%s-cuda" $name) $name (gt (int .values.gpu.count) 0))) -}}
{{- end }}

{{/* The size of /dev/shm. Call: the values of a service. */}}
{{- define "allm.sharedMemory" -}}
{{- if .multiNode }}{{ .multiNode.sharedMemory | default "10Gi" }}{{ else }}2Gi{{ end -}}
{{- end }}
