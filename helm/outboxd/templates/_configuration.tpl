{{/*
What the daemon reads. Numbers go through toYaml and toJson only: printed by a template, 10000000 would become 1e+07.
*/}}

{{- define "outboxd.reload" -}}
{{- /* Helm reads a bare `off` as false. */ -}}
{{- if eq (toString .Values.daemon.reload) "watch" -}}watch{{- else -}}off{{- end -}}
{{- end -}}

{{- define "outboxd.files" -}}
pipelines.yaml: |
  {{- dict "connections" (include "outboxd.present" .Values.connections | fromYaml) "pipelines" (include "outboxd.present" .Values.pipelines | fromYaml) | toYaml | nindent 2 }}
{{- end -}}

{{/* A map without what a later values file has taken out with `null`. */}}
{{- define "outboxd.present" -}}
{{- $present := dict -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $present $name $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $present -}}
{{- end -}}

{{/*
Settings of the process are environment variables: they count from its start on, and a change of one rolls the pods.
The argument's `value` is a section, its `name` the variable's beginning.
*/}}
{{- define "outboxd.settings" -}}
{{- range $key, $value := .value }}
{{- $name := printf "%s__%s" $.name (upper $key) }}
{{- if kindIs "map" $value }}
{{- include "outboxd.settings" (dict "value" $value "name" $name) }}
{{- else if not (or (kindIs "invalid" $value) (and (kindIs "string" $value) (eq $value ""))) }}
- name: {{ $name }}
  value: {{ toJson $value | trimAll "\"" | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The drain in whole seconds, rounded up. */}}
{{- define "outboxd.drainSeconds" -}}
{{- $text := .Values.daemon.drain_timeout -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexFind "[a-z]+$" $text -}}
{{- $seconds := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit -}}
{{- mulf $number $seconds | ceil | int -}}
{{- end -}}

{{- define "outboxd.gracePeriod" -}}
{{- if .Values.terminationGracePeriodSeconds -}}
{{- .Values.terminationGracePeriodSeconds | int -}}
{{- else -}}
{{- add (include "outboxd.drainSeconds" . | int) 30 -}}
{{- end -}}
{{- end -}}

{{/* The name of the ConfigMap with the plugins' requirements: another one for others, so that pods are rolled. */}}
{{- define "outboxd.requirementsName" -}}
{{- printf "%s-plugins-%s" (include "outboxd.fullname" .) (.Values.plugins.requirements | sha256sum | trunc 8) -}}
{{- end -}}
