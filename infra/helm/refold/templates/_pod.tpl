{{/* A service is a dictionary: root; name; role, its principal in Kafka; of, its values; args; and, where it has some,
settings, secrets (setting: [Secret, entry]), files (folder: Secret), grace, and probes: false. */}}

{{- define "refold.full" -}}
{{ .root.Release.Name }}-{{ .name | replace "_" "-" }}
{{- end }}

{{- define "refold.selector" -}}
app.kubernetes.io/name: refold
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "refold.metadata" -}}
name: {{ include "refold.full" . }}
labels:
  {{- include "refold.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "refold.login" -}}
refold-{{ .role | replace "." "-" }}
{{- end }}

{{- define "refold.env" -}}
{{- $kafka := .root.Values.kafka -}}
{{- $options := deepCopy ($kafka.options | default dict) -}}
{{- $login := include "refold.login" . -}}
- {name: REFOLD_MEMBER, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- if hasKey $options "sasl.mechanism" }}
{{- $options = merge $options (dict "sasl.username" $login "sasl.password" "$(KAFKA_PASSWORD)") }}
- {name: KAFKA_PASSWORD, valueFrom: {secretKeyRef: {name: {{ $login | replace "_" "-" }}, key: password}}}
{{- end }}
{{- range $setting, $at := .secrets }}
- {name: REFOLD_{{ $setting }}, valueFrom: {secretKeyRef: {name: {{ index $at 0 }}, key: {{ index $at 1 }}}}}
{{- end }}
{{- $own := dict "KAFKA__BOOTSTRAP" $kafka.bootstrap "KAFKA__PREFIX" $kafka.prefix "KAFKA__PARTITIONS" $kafka.partitions
  "KAFKA__OPTIONS" $options "TRUST" .root.Values.trust "METRICS__ADDRESS" "0.0.0.0:9464" }}
{{- $settings := mergeOverwrite (dict) .root.Values.settings (.of.settings | default dict) }}
{{- $settings = mergeOverwrite $settings (.settings | default dict) $own }}
{{- range $setting, $value := $settings }}
- {name: REFOLD_{{ $setting }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
{{- end }}
{{- end }}

{{- define "refold.pod" -}}
{{- $v := .root.Values -}}
{{- $files := merge (dict) (.files | default dict) -}}
{{- with $v.kafka.caSecret }}{{ $_ := set $files "ca" . }}{{ end -}}
{{- if hasKey ($v.kafka.options | default dict) "ssl.certificate.location" }}
{{- $_ := set $files "kafka" (include "refold.login" . | replace "_" "-") }}
{{- end -}}
metadata:
  labels: {{- include "refold.selector" . | nindent 4 }}
spec:
  {{- with $v.pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $v.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: false
  # Kubernetes would set variables for each Service of the namespace.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace | default .of.graceSeconds | default 30 }}
  # Key files are root's, and their readers have the group.
  securityContext:
    {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: refold
      image: {{ $v.image | quote }}
      imagePullPolicy: {{ $v.imagePullPolicy }}
      args: {{ toJson .args }}
      env: {{- include "refold.env" . | nindent 8 }}
      {{- with concat $v.envFrom (.of.envFrom | default list) }}
      envFrom: {{ toJson . }}
      {{- end }}
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      {{- with .of.resources }}
      resources: {{ toJson . }}
      {{- end }}
      {{- if ne (toString .probes) "false" }}
      ports:
        - {name: metrics, containerPort: 9464}
        {{- with .port }}
        - {name: http, containerPort: {{ . }}}
        {{- end }}
      startupProbe:
        {httpGet: {path: /startupz, port: metrics}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 180}
      readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 4, timeoutSeconds: 5}
      livenessProbe: {httpGet: {path: /livez, port: metrics}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 3}
      {{- end }}
      {{- with .folder }}
      # A library makes folders there, and all else of the container is read-only.
      workingDir: {{ . }}
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- range $folder, $secret := $files }}
        - {name: {{ $folder }}, mountPath: /etc/refold/{{ $folder }}, readOnly: true}
        {{- end }}
  volumes:
    # The lock of the member's name lies here, too: a container that starts again in its pod has it.
    - {name: tmp, emptyDir: {}}
    {{- range $folder, $secret := $files }}
    - {name: {{ $folder }}, secret: {secretName: {{ $secret }}, defaultMode: 0400}}
    {{- end }}
{{- end }}

{{/* Members of a group: pods with names that stay. */}}
{{- define "refold.statefulset" -}}
apiVersion: apps/v1
kind: StatefulSet
metadata: {{- include "refold.metadata" . | nindent 2 }}
spec:
  serviceName: {{ .root.Release.Name }}-metrics
  {{- if not (or .scaled (kindIs "invalid" .of.replicas)) }}
  replicas: {{ .of.replicas }}
  {{- end }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "refold.selector" . | nindent 6 }}
  template: {{- include "refold.pod" . | nindent 4 }}
---
{{ include "refold.disruption" . }}
{{- end }}

{{- define "refold.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata: {{- include "refold.metadata" . | nindent 2 }}
spec:
  {{- if kindIs "invalid" .of.replicas }}
  replicas: 1
  # It works alone, and is stopped before its successor starts.
  strategy: {type: Recreate}
  {{- else }}
  replicas: {{ .of.replicas }}
  {{- end }}
  selector:
    matchLabels: {{- include "refold.selector" . | nindent 6 }}
  template: {{- include "refold.pod" . | nindent 4 }}
{{- end }}

{{- define "refold.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "refold.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "refold.selector" . | nindent 6 }}
{{- end }}
