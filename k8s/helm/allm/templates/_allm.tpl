{{/* Labels of an object. Call: (list root component). */}}
{{- define "allm.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: allm
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: allm
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
{{- end }}

{{/* Labels that select Pods of a component, of all its groups. Call: (list root component). */}}
{{- define "allm.selector" -}}
app.kubernetes.io/name: allm
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels that select all Pods of allm, including Redis. */}}
{{- define "allm.everything" -}}
app.kubernetes.io/name: allm
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* An image of ours. Call: (list root name). */}}
{{- define "allm.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.container.registry }}{{ trimSuffix "/" . }}/{{ end }}allm-{{ index . 1 }}:{{ $root.Values.container.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* The start of every Pod's spec: the restricted profile, no access to the Kubernetes API. Call: (dict root id). */}}
{{- define "allm.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .id }}
  runAsGroup: {{ .id }}
  fsGroup: {{ .id }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.container.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Scheduling and spreading of a service's Pods. Call: (dict root values component). */}}
{{- define "allm.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toJson . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ .labels | fromYaml | toJson }}
{{- end }}

{{- define "allm.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* SIGTERM drains; endpoints and DNS get the time to remove the Pod before it. */}}
{{- define "allm.lifecycle" -}}
lifecycle:
  preStop:
    sleep: {seconds: {{ .Values.drain.preStopSeconds }}}
{{- end }}

{{- define "allm.graceSeconds" -}}
{{ add .Values.drain.preStopSeconds .Values.drain.delaySeconds .Values.drain.seconds 15 }}
{{- end }}

{{/*
Settings of every container of ours. Call: (dict root env role): env are the service's own, which take precedence; role:
of its private key for identities, if it has one.
*/}}
{{- define "allm.env" -}}
{{- $values := .root.Values -}}
- {name: ALLM_AUTH, value: {{ $values.auth.mode }}}
{{- if and .role (eq $values.auth.mode "keys") }}
- {name: ALLM_IDENTITY_KEY_FILE, value: /etc/allm/identity/{{ .role }}.key}
- {name: ALLM_IDENTITY_PUBLIC_KEYS_FILE, value: /etc/allm/public-keys/public.keys}
{{- end }}
{{ include "allm.processEnv" .root }}
- {name: ALLM_METRICS_HOST, value: 0.0.0.0}
- name: ALLM_REPLICA
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if $values.tls.services.secret }}
- {name: ALLM_SERVICE_TLS_CA, value: /etc/allm/service-tls/ca.crt}
- {name: ALLM_SERVICE_TLS_CERT, value: /etc/allm/service-tls/tls.crt}
- {name: ALLM_SERVICE_TLS_KEY, value: /etc/allm/service-tls/tls.key}
{{- end }}
{{- with $values.traces.endpoint }}
- {name: ALLM_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- include "allm.givenEnv" . }}
{{- end }}

{{/* Logging and shutdown of a process. */}}
{{- define "allm.processEnv" -}}
- {name: ALLM_LOG_LEVEL, value: {{ .Values.logLevel }}}
- {name: ALLM_DRAIN_DELAY_SECONDS, value: {{ .Values.drain.delaySeconds | quote }}}
- {name: ALLM_DRAIN_SECONDS, value: {{ .Values.drain.seconds | quote }}}
{{- end }}

{{/* Settings from the values. Call: as allm.env. */}}
{{- define "allm.givenEnv" -}}
{{- range $name, $value := mergeOverwrite (deepCopy .root.Values.env) (.env | default dict) }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Redis, for services that share state between replicas. */}}
{{- define "allm.redisEnv" -}}
{{- if eq .Values.redis.kind "bundled" }}
- {name: ALLM_REDIS_URL, value: "redis://{{ .Release.Name }}-redis:6379/0"}
{{- else if eq .Values.redis.kind "external" }}
- name: ALLM_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ required "redis.secret names the Secret with the key url" .Values.redis.secret }}, key: url}}
{{- end }}
{{- end }}

{{/* The hub, for services that fetch from it. */}}
{{- define "allm.hubEnv" -}}
{{- with .Values.hub.endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .Values.hub.tokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
{{- end }}
{{- end }}

{{/* Secrets and public keys of every container of ours, as mounts and as volumes. Call: (dict root role), as allm.env. */}}
{{- define "allm.secretMounts" -}}
{{- if and .role (eq .root.Values.auth.mode "keys") }}
- {name: identity, mountPath: /etc/allm/identity, readOnly: true}
# A folder, because Kubernetes never updates single mounted files of a ConfigMap.
- {name: public-keys, mountPath: /etc/allm/public-keys, readOnly: true}
{{- end }}
{{- if .root.Values.tls.services.secret }}
- {name: service-tls, mountPath: /etc/allm/service-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "allm.secretVolumes" -}}
{{- if eq .root.Values.auth.mode "keys" }}
- name: identity
  secret: {secretName: {{ .root.Values.auth.identity }}-{{ .role }}, defaultMode: 0440}
- name: public-keys
  configMap: {name: {{ .root.Values.auth.identity }}}
{{- end }}
{{- with .root.Values.tls.services.secret }}
- name: service-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Models in OCI images, read-only, the same in the catalog and in every service. */}}
{{- define "allm.modelImageMounts" -}}
{{- range .Values.modelStorage.images }}
- {name: model-{{ .name }}, mountPath: /model-images/{{ .name }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "allm.modelImageVolumes" -}}
{{- range .Values.modelStorage.images }}
- name: model-{{ .name }}
  image: {reference: {{ .reference | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- end }}

{{/* The volume of fetched models. */}}
{{- define "allm.modelVolume" -}}
- name: models
{{- if eq .Values.modelStorage.kind "pvc" }}
  persistentVolumeClaim: {claimName: {{ include "allm.modelClaim" . }}}
{{- else }}
  emptyDir: {sizeLimit: {{ .Values.modelStorage.sizeLimit }}}
{{- end }}
{{- end }}

{{- define "allm.modelClaim" -}}
{{ .Values.modelStorage.claim.existing | default (printf "%s-models" .Release.Name) }}
{{- end }}

{{/* The value of ALLM_TEXT_GROUP_MODELS: the same for the gateway and all text services. */}}
{{- define "allm.groupModels" -}}
{{- $groups := list -}}
{{- range $name, $group := .Values.textGroups -}}
{{- $groups = append $groups (printf "%s=%s" $name (join "," $group.models)) -}}
{{- end -}}
{{- join ";" $groups -}}
{{- end }}

{{/* The gateway's URL for callers. */}}
{{- define "allm.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{ .Values.publicUrl }}
{{- else if .Values.ingress.enabled -}}
{{ ternary "https" "http" (not (empty .Values.ingress.tlsSecret)) }}://{{ .Values.ingress.host }}
{{- else -}}
{{ ternary "https" "http" (not (empty .Values.tls.gateway.secret)) }}://{{ .Release.Name }}-gateway:8080
{{- end -}}
{{- end }}

{{/* Rejects values that cannot work, by name, before any deployment. */}}
{{- define "allm.check" -}}
{{- $several := or (gt (int .Values.text.replicas) 1) (not (empty .Values.textGroups)) (and (ne .Values.autoscaling.kind "none") (gt (int .Values.text.scale.max) 1)) -}}
{{- if and (eq .Values.redis.kind "none") $several -}}
{{- fail "redis.kind: several text replicas need a Redis for what they keep of responses: bundled or external" -}}
{{- end -}}
{{- $pictures := or (gt (int .Values.image.replicas) 1) (and (ne .Values.autoscaling.kind "none") (gt (int .Values.image.scale.max) 1)) -}}
{{- if and .Values.image.enabled $pictures (not .Values.image.sharedFolder.enabled) -}}
{{- fail "image.sharedFolder.enabled: several replicas of the image service need a folder that all of them see" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (eq .Values.auth.mode "none") -}}
{{- fail "ingress.enabled: without keys the gateway is reached from its own Pod only; auth.mode must be keys or open" -}}
{{- end -}}
{{- range $name, $group := .Values.textGroups -}}
{{- if not $group.models -}}
{{- fail (printf "textGroups.%s.models: a group needs the ids of its models" $name) -}}
{{- end -}}
{{- if eq $name "default" -}}
{{- fail "textGroups.default: so the Pods of text itself are labelled; call the group otherwise" -}}
{{- end -}}
{{- if $group.multiNode -}}
{{- include "allm.checkNodes" (dict "root" $ "name" $name "group" $group) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Checks of a group whose machines compute a model together. Call: (dict root name group). */}}
{{- define "allm.checkNodes" -}}
{{- $storage := .root.Values.modelStorage -}}
{{- $path := printf "textGroups.%s" .name -}}
{{- $gpus := int (dig "gpu" "count" (int .root.Values.text.gpu.count) .group) -}}
{{- if lt $gpus 1 -}}
{{- fail (printf "%s.gpu.count: a multiNode group needs GPUs: those of each machine" $path) -}}
{{- end -}}
{{- if and (eq $storage.kind "pvc") (eq $storage.claim.accessMode "ReadWriteOnce") (not $storage.claim.existing) -}}
{{- fail (printf "%s.multiNode: modelStorage.claim.accessMode must be ReadWriteMany, since its machines read the same files" $path) -}}
{{- end -}}
{{- if and (eq $storage.kind "emptyDir") (not $storage.images) -}}
{{- fail (printf "%s.multiNode: its machines read the same files: modelStorage.kind must be pvc, or the model be one of modelStorage.images" $path) -}}
{{- end -}}
{{- if gt (len (printf "%s-text-%s-nodes" .root.Release.Name .name)) 48 -}}
{{- fail (printf "%s: together with the release's the name is too long for a LeaderWorkerSet's Pods" $path) -}}
{{- end -}}
{{- $needed := mul $gpus .group.multiNode.size -}}
{{- range $model := .root.Values.models -}}
{{- if has $model.id $.group.models -}}
{{- $engine := $model.engine | default dict -}}
{{- $used := mul ($engine.tensor_parallel | default 1) ($engine.pipeline_parallel | default 1) -}}
{{- if or (ne ($model.runtime | default "") "vllm") (ne $used $needed) -}}
{{- fail (printf "models: %s is computed by %s, on %d machines of %d GPUs: it needs runtime: vllm, and an engine whose tensor_parallel times pipeline_parallel is %d" $model.id $path (int $.group.multiNode.size) $gpus (int $needed)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
