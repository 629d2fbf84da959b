//! The default of each key, as YAML. Tests compare them with [`Config`](crate::Config) and the documented ones.

/// Key and default.
#[rustfmt::skip]
pub(crate) const DEFAULTS: &[(&str, &str)] = &[
    ("append_output", "[]"),
    ("buffered_outputs", "false"),
    ("capture.default_duration", "5000"),
    ("capture.enabled", "false"),
    ("capture.max_file_size_mb", "0"),
    ("capture.mode", "rules"),
    ("capture.path_prefix", "/tmp/falco"),
    ("config_files", "[]"),
    ("engine.gvisor.config", "''"),
    ("engine.kind", "modern_ebpf"),
    ("engine.kmod.buf_size_preset", "4"),
    ("engine.modern_ebpf.buf_size_preset", "4"),
    ("engine.replay.capture_file", "''"),
    ("file_output.enabled", "false"),
    ("file_output.filename", "./events.txt"),
    ("file_output.keep_alive", "false"),
    ("grpc.bind_address", "unix:///run/falco/falco.sock"),
    ("grpc.cert_chain", "/etc/falco/certs/server.crt"),
    ("grpc.enabled", "false"),
    ("grpc.private_key", "/etc/falco/certs/server.key"),
    ("grpc.root_certs", "/etc/falco/certs/ca.crt"),
    ("grpc.threadiness", "0"),
    ("grpc_output.enabled", "false"),
    ("http_output.ca_bundle", "''"),
    ("http_output.ca_cert", "''"),
    ("http_output.ca_path", "/etc/ssl/certs"),
    ("http_output.client_cert", "/etc/ssl/certs/client.crt"),
    ("http_output.client_key", "/etc/ssl/certs/client.key"),
    ("http_output.compress_uploads", "false"),
    ("http_output.echo", "false"),
    ("http_output.enabled", "false"),
    ("http_output.headers", "{}"),
    ("http_output.insecure", "false"),
    ("http_output.keep_alive", "false"),
    ("http_output.max_consecutive_timeouts", "5"),
    ("http_output.mtls", "false"),
    ("http_output.url", "''"),
    ("http_output.user_agent", "falcosecurity/falco"),
    ("io_uring", "deny"),
    ("json_include_message_property", "false"),
    ("json_include_output_fields_property", "true"),
    ("json_include_output_property", "true"),
    ("json_include_tags_property", "true"),
    ("json_output", "false"),
    ("log_level", "info"),
    ("log_stderr", "true"),
    ("log_syslog", "false"),
    ("metrics.convert_memory_to_mb", "true"),
    ("metrics.enabled", "false"),
    ("metrics.include_empty_values", "false"),
    ("metrics.interval", "5s"),
    ("metrics.kernel_event_counters_enabled", "true"),
    ("metrics.output_file", "''"),
    ("metrics.output_rule", "false"),
    ("metrics.resource_utilization_enabled", "true"),
    ("metrics.rules_counters_enabled", "true"),
    ("metrics.state_counters_enabled", "true"),
    ("nats_output.credentials_file", "''"),
    ("nats_output.enabled", "false"),
    ("nats_output.jetstream.enabled", "false"),
    ("nats_output.jetstream.stream", "''"),
    ("nats_output.password_file", "''"),
    ("nats_output.subject", "falco.<priority>.<rule>"),
    ("nats_output.timeout", "0"),
    ("nats_output.tls.ca_file", "''"),
    ("nats_output.tls.cert_file", "''"),
    ("nats_output.tls.enabled", "false"),
    ("nats_output.tls.key_file", "''"),
    ("nats_output.token_file", "''"),
    ("nats_output.url", "[]"),
    ("nats_output.user", "''"),
    ("otlp_output.compression", "none"),
    ("otlp_output.enabled", "false"),
    ("otlp_output.endpoint", "''"),
    ("otlp_output.headers", "{}"),
    ("otlp_output.protocol", "http/protobuf"),
    ("otlp_output.resource_attributes", "{}"),
    ("otlp_output.service_name", "tollgate"),
    ("otlp_output.timeout", "0"),
    ("otlp_output.tls.ca_file", "''"),
    ("otlp_output.tls.cert_file", "''"),
    ("otlp_output.tls.key_file", "''"),
    ("output_timeout", "2000"),
    ("outputs.max_burst", "1000"),
    ("outputs.rate", "0"),
    ("outputs_queue.capacity", "0"),
    ("priority", "debug"),
    ("program_output.enabled", "false"),
    ("program_output.keep_alive", "false"),
    ("program_output.program", "''"),
    ("rule_matching", "first"),
    ("rules", "[]"),
    ("rules_file", "[]"),
    ("rules_files", "[]"),
    ("runtime.accept_partial", "[]"),
    ("runtime.agent", "container"),
    ("runtime.agent_linger", "60"),
    ("runtime.audit", "false"),
    ("runtime.binary", "''"),
    ("runtime.gvisor_session", "''"),
    ("runtime.on_agent_death", "continue"),
    ("runtime.policies", "''"),
    ("runtime.policy", "''"),
    ("runtime.vm_kernel", "''"),
    ("runtime.vm_modules", "''"),
    ("runtime.watch", "all"),
    ("static_fields", "{}"),
    ("stdout_output.enabled", "true"),
    ("syscall_event_drops.actions", "[alert]"),
    ("syscall_event_drops.max_burst", "1000"),
    ("syscall_event_drops.rate", "0"),
    ("syscall_event_drops.threshold", "0"),
    ("syslog_output.enabled", "false"),
    ("time_format_iso_8601", "false"),
    ("verify", "sampled"),
    ("watch_config_files", "false"),
    ("webserver.enabled", "false"),
    ("webserver.k8s_healthz_endpoint", "/healthz"),
    ("webserver.listen_address", "127.0.0.1"),
    ("webserver.listen_port", "8765"),
    ("webserver.prometheus_metrics_enabled", "false"),
    ("webserver.ssl_certificate", "/etc/falco/falco.pem"),
    ("webserver.ssl_enabled", "false"),
];

#[cfg(test)]
mod tests {
    use yaml::settings;

    use super::*;
    use crate::Config;
    use crate::keys::KEYS;

    #[test]
    fn every_key_has_its_default() {
        let keys: Vec<_> = KEYS.iter().map(|key| key.path).collect();
        let named: Vec<_> = DEFAULTS.iter().map(|(path, _)| *path).collect();
        assert_eq!(named, keys);
        for (key, (path, text)) in KEYS.iter().zip(DEFAULTS) {
            let node = settings::read(path, text).expect("good YAML");
            let mut config = Config::default();
            key.set(&mut config, &node).expect("a good value");
            assert!(
                config == Config::default(),
                "the default of `{path}` is another one"
            );
        }
    }
}
