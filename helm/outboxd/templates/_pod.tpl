{{/* What the daemon, its init containers and the migration share. */}}

{{- define "outboxd.environment" -}}
- name: OUTBOXD_DAEMON__INSTANCE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- $daemon := dict "name" (default (include "outboxd.fullname" .) .Values.daemon.name) "reload" (include "outboxd.reload" .) }}
{{- range $section, $value := dict "daemon" (merge $daemon .Values.daemon) "http" .Values.http "telemetry" .Values.telemetry }}
{{- include "outboxd.settings" (dict "value" $value "name" (printf "OUTBOXD_%s" (upper $section))) }}
{{- end }}
{{- if .Values.plugins.requirements }}
- name: PYTHONPATH
  value: /opt/outboxd-plugins
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outboxd.mounts" -}}
- name: configuration
  mountPath: /etc/outboxd
  readOnly: true
{{- if .Values.existingSecret }}
- name: secrets
  mountPath: /etc/outboxd-secrets
  readOnly: true
{{- end }}
{{- if .Values.plugins.requirements }}
- name: plugins
  mountPath: /opt/outboxd-plugins
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The argument's `name` is the ConfigMap of the pipelines, its `requirements` the one of the plugins. */}}
{{- define "outboxd.volumes" -}}
{{- $values := .root.Values -}}
- name: configuration
  configMap:
    name: {{ default .name $values.existingConfigMap }}
{{- if $values.plugins.requirements }}
- name: plugin-requirements
  configMap:
    name: {{ .requirements }}
    items:
      - key: requirements.txt
        path: requirements.txt
{{- end }}
{{- with $values }}
{{- if .existingSecret }}
- name: secrets
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if .plugins.requirements }}
- name: plugins
  emptyDir: {}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .scratchSize }}
{{- with .extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Image, environment and security of a container that runs `outboxd`. */}}
{{- define "outboxd.container" -}}
image: {{ include "outboxd.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  {{- include "outboxd.environment" . | nindent 2 }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "outboxd.pluginsContainer" -}}
- name: plugins
  image: {{ default (include "outboxd.image" .) .Values.plugins.image | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  command: [python, -m, pip, install]
  args:
    - --require-hashes
    - --no-deps
    - --no-cache-dir
    - --disable-pip-version-check
    - "--only-binary=:all:"
    - --target=/opt/outboxd-plugins
    - --requirement=/etc/outboxd-plugins/requirements.txt
    {{- range .Values.plugins.pipArgs }}
    - {{ . | quote }}
    {{- end }}
  env:
    - name: HOME
      value: /tmp
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - name: plugins
      mountPath: /opt/outboxd-plugins
    - name: plugin-requirements
      mountPath: /etc/outboxd-plugins
      readOnly: true
    - name: tmp
      mountPath: /tmp
{{- end -}}

{{/* The init containers that come before everything. */}}
{{- define "outboxd.firstContainers" -}}
{{- if .Values.plugins.requirements -}}
{{ include "outboxd.pluginsContainer" . }}
{{ end -}}
{{- with .Values.extraInitContainers -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* Where a pod may run and by whom its image is pulled. */}}
{{- define "outboxd.placement" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
