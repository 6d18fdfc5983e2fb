{{/* Names and labels. The selector labels can never change once a release is installed. */}}

{{- define "outboxd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "outboxd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "outboxd.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "outboxd.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outboxd.selector" -}}
app.kubernetes.io/name: {{ include "outboxd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end -}}

{{- define "outboxd.labels" -}}
{{- include "outboxd.withCommonLabels" (list . (include "outboxd.selector" .)) -}}
{{- end -}}

{{/* The labels of what is no daemon: a Job's pods must not be taken for one. */}}
{{- define "outboxd.migrationSelector" -}}
app.kubernetes.io/name: {{ include "outboxd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: migration
{{- end -}}

{{- define "outboxd.migrationLabels" -}}
{{- include "outboxd.withCommonLabels" (list . (include "outboxd.migrationSelector" .)) -}}
{{- end -}}

{{/* Each label once, whatever people call theirs; the chart's own win. */}}
{{- define "outboxd.withCommonLabels" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" -}}
{{- $own := dict "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" $chart -}}
{{- toYaml (mustMergeOverwrite (deepCopy $root.Values.commonLabels) $own (index . 1 | fromYaml)) -}}
{{- end -}}

{{/* A pod's labels: its selector, which wins, and `podLabels`. */}}
{{- define "outboxd.podLabels" -}}
{{- toYaml (mustMergeOverwrite (deepCopy (index . 0).Values.podLabels) (index . 1 | fromYaml)) -}}
{{- end -}}

{{/* The `annotations:` of an object's metadata, the common ones and those of the list's second item; or nothing. */}}
{{- define "outboxd.annotations" -}}
{{- $root := index . 0 -}}
{{- with mustMergeOverwrite (dict) $root.Values.commonAnnotations (index . 1) }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "outboxd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "outboxd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "outboxd.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}
