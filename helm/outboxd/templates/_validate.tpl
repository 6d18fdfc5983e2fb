{{/* Fails with everything that the schema cannot see, each with its remedy. */}}

{{- define "outboxd.validate" -}}
{{- $faults := concat (include "outboxd.renamed" . | fromJsonArray) (include "outboxd.contradictions" . | fromJsonArray) -}}
{{- if $faults -}}
{{- fail (printf "\n\nThe values of outboxd need a correction:\n  * %s\n" (join "\n  * " $faults)) -}}
{{- end -}}
{{- end -}}

{{- define "outboxd.renamed" -}}
{{- $faults := list -}}
{{- range $path, $instead := .Files.Get "files/renamed.yaml" | fromYaml -}}
{{- $here := $.Values -}}
{{- $isThere := true -}}
{{- range $key := splitList "." $path -}}
{{- if and $isThere (kindIs "map" $here) (hasKey $here $key) -}}
{{- $here = get $here $key -}}
{{- else -}}
{{- $isThere = false -}}
{{- end -}}
{{- end -}}
{{- if $isThere -}}
{{- $faults = append $faults (printf "`%s` is no value of this chart: use %s" $path $instead) -}}
{{- end -}}
{{- end -}}
{{- toJson $faults -}}
{{- end -}}

{{- define "outboxd.contradictions" -}}
{{- $faults := list -}}
{{- $values := .Values -}}
{{- $connections := include "outboxd.present" $values.connections | fromYaml -}}
{{- $pipelines := include "outboxd.present" $values.pipelines | fromYaml -}}
{{- $hasPipelines := or $connections $pipelines -}}
{{- if and $values.existingConfigMap $hasPipelines -}}
{{- $faults = append $faults "`existingConfigMap` and `connections`/`pipelines` are both set: keep one of them" -}}
{{- end -}}
{{- if not (or $values.existingConfigMap $pipelines) -}}
{{- $faults = append $faults "there is no pipeline: write some into `pipelines`, or name a ConfigMap with them in `existingConfigMap`" -}}
{{- end -}}
{{- if and $values.autoscaling.enabled $values.keda.enabled -}}
{{- $faults = append $faults "`autoscaling` and `keda` are both enabled: they would fight over the replicas" -}}
{{- end -}}
{{- if and $values.keda.enabled (not $values.keda.triggers) -}}
{{- $faults = append $faults "`keda.enabled` without `keda.triggers`: say what it shall look at" -}}
{{- end -}}
{{- range list "autoscaling" "keda" -}}
{{- $scaler := get $values . -}}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- $faults = append $faults (printf "`%s.minReplicas` is above `%s.maxReplicas`" . .) -}}
{{- end -}}
{{- end -}}
{{- if and $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled -}}
{{- $faults = append $faults "`metrics.serviceMonitor` and `metrics.podMonitor` are both enabled: every sample would be there twice" -}}
{{- end -}}
{{- if and (or $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled) (not $values.telemetry.metrics.prometheus) -}}
{{- $faults = append $faults "a monitor is enabled and `telemetry.metrics.prometheus` is false: there is nothing to scrape" -}}
{{- end -}}
{{- if le (int (include "outboxd.gracePeriod" .)) (int (include "outboxd.drainSeconds" .)) -}}
{{- $faults = append $faults (printf "`terminationGracePeriodSeconds` (%s) is not longer than `daemon.drain_timeout` (%s): the kubelet would kill it in the middle; leave it out" (include "outboxd.gracePeriod" .) $values.daemon.drain_timeout) -}}
{{- end -}}
{{- with $values.podDisruptionBudget -}}
{{- if and .enabled (kindIs "invalid" .minAvailable) (kindIs "invalid" .maxUnavailable) -}}
{{- $faults = append $faults "`podDisruptionBudget` has neither `maxUnavailable` nor `minAvailable`" -}}
{{- end -}}
{{- if and .enabled (not (kindIs "invalid" .minAvailable)) (not (kindIs "invalid" .maxUnavailable)) -}}
{{- $faults = append $faults "`podDisruptionBudget` has both `maxUnavailable` and `minAvailable`: set one of them to null" -}}
{{- end -}}
{{- end -}}
{{- if eq (int $values.http.port) (int $values.http.management.port) -}}
{{- $faults = append $faults "`http.port` and `http.management.port` are the same" -}}
{{- end -}}
{{- if and $hasPipelines (not $values.allowLiteralSecrets) -}}
{{- $faults = concat $faults (include "outboxd.literalSecrets" (dict "value" (dict "connections" $connections "pipelines" $pipelines) "path" "") | fromJsonArray) -}}
{{- end -}}
{{- toJson $faults -}}
{{- end -}}

{{/* Passwords that are written out: they would be readable in a ConfigMap. Never shown in the message. */}}
{{- define "outboxd.literalSecrets" -}}
{{- $faults := list -}}
{{- $remedy := "is written out and would stand in a ConfigMap: take it from `${file:/etc/outboxd-secrets/KEY}` (with `existingSecret`) or `${env:NAME}`, or set `allowLiteralSecrets`" -}}
{{- if or (kindIs "map" .value) (kindIs "slice" .value) -}}
{{- range $key, $item := .value -}}
{{- $path := ternary (toString $key) (printf "%s.%v" $.path $key) (eq $.path "") -}}
{{- if kindIs "string" $item -}}
{{- if regexMatch "://[^/@?#]*:[^/@?#$][^/@?#]*@" $item -}}
{{- $faults = append $faults (printf "the password in `%s` %s" $path $remedy) -}}
{{- else if and (regexMatch "(?i)(password|secret|token|passphrase)$" (toString $key)) $item (not (hasPrefix "${" $item)) -}}
{{- $faults = append $faults (printf "`%s` %s" $path $remedy) -}}
{{- end -}}
{{- else if or (kindIs "map" $item) (kindIs "slice" $item) -}}
{{- $faults = concat $faults (include "outboxd.literalSecrets" (dict "value" $item "path" $path) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $faults -}}
{{- end -}}
