//! The settings that have an effect.

use std::path::PathBuf;

use yaml::settings::{Node, Problem};

use super::append::{append_output, texts_by_name};
use super::choice::choice;
use super::model::Config;
use super::values::{
    address, buffer, capture_mode, drop_actions, drop_threshold, endpoint, engine_kind, interval,
    log_level, priority, queue_capacity, rule_matching, rules_files, selections, small, texts,
};

/// One setting.
pub(crate) struct Key {
    /// Its path; as in Falco's configuration.
    pub(crate) path: &'static str,
    kind: Kind,
}

/// What a setting takes, and where that is kept.
enum Kind {
    Boolean(fn(&mut Config) -> &mut bool),
    Integer(fn(&mut Config) -> &mut u64),
    Number(fn(&mut Config) -> &mut f64),
    Text(fn(&mut Config) -> &mut String),
    File(fn(&mut Config) -> &mut PathBuf),
    /// What needs more than to be read, and the JSON type of what it takes.
    Other(&'static str, fn(&mut Config, &Node) -> Result<(), Problem>),
}

impl Key {
    const fn boolean(path: &'static str, place: fn(&mut Config) -> &mut bool) -> Self {
        let kind = Kind::Boolean(place);
        Self { path, kind }
    }

    const fn integer(path: &'static str, place: fn(&mut Config) -> &mut u64) -> Self {
        let kind = Kind::Integer(place);
        Self { path, kind }
    }

    const fn number(path: &'static str, place: fn(&mut Config) -> &mut f64) -> Self {
        let kind = Kind::Number(place);
        Self { path, kind }
    }

    const fn text(path: &'static str, place: fn(&mut Config) -> &mut String) -> Self {
        let kind = Kind::Text(place);
        Self { path, kind }
    }

    const fn file(path: &'static str, place: fn(&mut Config) -> &mut PathBuf) -> Self {
        let kind = Kind::File(place);
        Self { path, kind }
    }

    const fn other(
        path: &'static str,
        json_type: &'static str,
        set: fn(&mut Config, &Node) -> Result<(), Problem>,
    ) -> Self {
        let kind = Kind::Other(json_type, set);
        Self { path, kind }
    }

    /// Puts a value into the configuration.
    pub(crate) fn set(&self, config: &mut Config, node: &Node) -> Result<(), Problem> {
        match self.kind {
            Kind::Boolean(place) => *place(config) = node.boolean()?,
            Kind::Integer(place) => *place(config) = node.integer()?,
            Kind::Number(place) => *place(config) = node.number()?,
            Kind::Text(place) => node.text()?.clone_into(place(config)),
            Kind::File(place) => *place(config) = PathBuf::from(node.text()?),
            Kind::Other(_, set) => set(config, node)?,
        }
        Ok(())
    }

    /// The JSON type of what it takes.
    pub(crate) fn json_type(&self) -> &'static str {
        match self.kind {
            Kind::Boolean(_) => "boolean",
            Kind::Integer(_) => "integer",
            Kind::Number(_) => "number",
            Kind::Text(_) | Kind::File(_) => "string",
            Kind::Other(json_type, _) => json_type,
        }
    }
}

/// All settings that have an effect. Names and meanings are Falco's; `http_output.headers`,
/// `io_uring`, `runtime` and `verify` are not in Falco.
#[rustfmt::skip]
pub(crate) const KEYS: &[Key] = &[
    Key::other("append_output", "array", append_output),
    Key::boolean("buffered_outputs", |config| &mut config.buffered_outputs),
    Key::integer("capture.default_duration", |config| &mut config.capture.default_duration_ms),
    Key::boolean("capture.enabled", |config| &mut config.capture.enabled),
    Key::integer("capture.max_file_size_mb", |config| &mut config.capture.max_file_size_mb),
    Key::other("capture.mode", "string", capture_mode),
    Key::text("capture.path_prefix", |config| &mut config.capture.path_prefix),
    // Carried out before settings are read.
    Key::other("config_files", "array", |_, _| Ok(())),
    Key::file("engine.gvisor.config", |config| &mut config.engine.gvisor_session),
    Key::other("engine.kind", "string", engine_kind),
    Key::other("engine.kmod.buf_size_preset", "integer", |config, node| {
        buffer(node).map(|number| config.engine.kmod_buffer = number)
    }),
    Key::other("engine.modern_ebpf.buf_size_preset", "integer", |config, node| {
        buffer(node).map(|number| config.engine.ebpf_buffer = number)
    }),
    Key::file("engine.replay.capture_file", |config| &mut config.engine.capture_file),
    Key::boolean("file_output.enabled", |config| &mut config.file_output.enabled),
    Key::file("file_output.filename", |config| &mut config.file_output.filename),
    Key::boolean("file_output.keep_alive", |config| &mut config.file_output.keep_alive),
    Key::text("grpc.bind_address", |config| &mut config.grpc.bind_address),
    Key::file("grpc.cert_chain", |config| &mut config.grpc.cert_chain),
    Key::boolean("grpc.enabled", |config| &mut config.grpc.enabled),
    Key::file("grpc.private_key", |config| &mut config.grpc.private_key),
    Key::file("grpc.root_certs", |config| &mut config.grpc.root_certs),
    Key::other("grpc.threadiness", "integer", |config, node| {
        small(node).map(|threads| config.grpc.threadiness = threads)
    }),
    Key::boolean("grpc_output.enabled", |config| &mut config.grpc.output),
    Key::file("http_output.ca_bundle", |config| &mut config.http_output.ca_bundle),
    Key::file("http_output.ca_cert", |config| &mut config.http_output.ca_cert),
    Key::file("http_output.ca_path", |config| &mut config.http_output.ca_path),
    Key::file("http_output.client_cert", |config| &mut config.http_output.client_cert),
    Key::file("http_output.client_key", |config| &mut config.http_output.client_key),
    Key::boolean("http_output.compress_uploads", |config| &mut config.http_output.compress_uploads),
    Key::boolean("http_output.echo", |config| &mut config.http_output.echo),
    Key::boolean("http_output.enabled", |config| &mut config.http_output.enabled),
    Key::other("http_output.headers", "object", |config, node| {
        texts_by_name(node).map(|headers| config.http_output.headers = headers)
    }),
    Key::boolean("http_output.insecure", |config| &mut config.http_output.insecure),
    Key::boolean("http_output.keep_alive", |config| &mut config.http_output.keep_alive),
    // Falco keeps it in one byte.
    Key::other("http_output.max_consecutive_timeouts", "integer", |config, node| {
        small(node).map(|limit| config.http_output.max_consecutive_timeouts = limit)
    }),
    Key::boolean("http_output.mtls", |config| &mut config.http_output.mtls),
    Key::text("http_output.url", |config| &mut config.http_output.url),
    Key::text("http_output.user_agent", |config| &mut config.http_output.user_agent),
    Key::other("io_uring", "string", |config, node| {
        choice(node).map(|value| config.io_uring = value)
    }),
    Key::boolean("json_include_message_property", |config| &mut config.json_parts.message),
    Key::boolean("json_include_output_fields_property", |config| &mut config.json_parts.output_fields),
    Key::boolean("json_include_output_property", |config| &mut config.json_parts.output),
    Key::boolean("json_include_tags_property", |config| &mut config.json_parts.tags),
    Key::boolean("json_output", |config| &mut config.json_output),
    Key::other("log_level", "string", log_level),
    Key::boolean("log_stderr", |config| &mut config.log.stderr),
    Key::boolean("log_syslog", |config| &mut config.log.syslog),
    Key::boolean("metrics.convert_memory_to_mb", |config| &mut config.metrics.megabytes),
    Key::boolean("metrics.enabled", |config| &mut config.metrics.enabled),
    Key::boolean("metrics.include_empty_values", |config| &mut config.metrics.empty_values),
    Key::other("metrics.interval", "string", interval),
    Key::boolean("metrics.kernel_event_counters_enabled", |config| &mut config.metrics.kernel),
    Key::file("metrics.output_file", |config| &mut config.metrics.output_file),
    Key::boolean("metrics.output_rule", |config| &mut config.metrics.output_rule),
    Key::boolean("metrics.resource_utilization_enabled", |config| &mut config.metrics.resources),
    Key::boolean("metrics.rules_counters_enabled", |config| &mut config.metrics.rules),
    Key::boolean("metrics.state_counters_enabled", |config| &mut config.metrics.state),
    Key::integer("output_timeout", |config| &mut config.output_timeout_ms),
    Key::other("outputs.max_burst", "integer", |config, node| {
        small(node).map(|burst| config.throttle.max_burst = burst)
    }),
    Key::number("outputs.rate", |config| &mut config.throttle.per_second),
    Key::other("outputs_queue.capacity", "integer", queue_capacity),
    Key::other("priority", "string", |config, node| {
        priority(node).map(|least| config.priority = least)
    }),
    Key::boolean("program_output.enabled", |config| &mut config.program_output.enabled),
    Key::boolean("program_output.keep_alive", |config| &mut config.program_output.keep_alive),
    Key::text("program_output.program", |config| &mut config.program_output.program),
    Key::other("rule_matching", "string", rule_matching),
    Key::other("rules", "array", selections),
    // The name before 0.38.
    Key::other("rules_file", "array", rules_files),
    Key::other("rules_files", "array", rules_files),
    Key::other("runtime.accept_partial", "array", |config, node| {
        texts(node).map(|rules| config.runtime.accept_partial = rules)
    }),
    Key::other("runtime.agent", "string", |config, node| {
        choice(node).map(|value| config.runtime.agent = value)
    }),
    Key::integer("runtime.agent_linger", |config| &mut config.runtime.agent_linger),
    Key::boolean("runtime.audit", |config| &mut config.runtime.audit),
    Key::text("runtime.binary", |config| &mut config.runtime.binary),
    Key::file("runtime.gvisor_session", |config| &mut config.runtime.gvisor_session),
    Key::other("runtime.on_agent_death", "string", |config, node| {
        choice(node).map(|value| config.runtime.on_agent_death = value)
    }),
    Key::file("runtime.policies", |config| &mut config.runtime.policies),
    Key::text("runtime.policy", |config| &mut config.runtime.policy),
    Key::file("runtime.vm_kernel", |config| &mut config.runtime.vm_kernel),
    Key::file("runtime.vm_modules", |config| &mut config.runtime.vm_modules),
    Key::other("runtime.watch", "string", |config, node| {
        choice(node).map(|value| config.runtime.watch = value)
    }),
    Key::other("static_fields", "object", |config, node| {
        texts_by_name(node).map(|fields| config.static_fields = fields)
    }),
    Key::boolean("stdout_output.enabled", |config| &mut config.stdout_enabled),
    Key::boolean("syslog_output.enabled", |config| &mut config.syslog_enabled),
    Key::other("syscall_event_drops.actions", "array", drop_actions),
    Key::other(
        "syscall_event_drops.max_burst",
        "integer",
        |config, node| small(node).map(|burst| config.drops.rate.max_burst = burst),
    ),
    Key::number("syscall_event_drops.rate", |config| {
        &mut config.drops.rate.per_second
    }),
    Key::other("syscall_event_drops.threshold", "number", drop_threshold),
    Key::boolean("time_format_iso_8601", |config| &mut config.time_format_iso_8601),
    Key::other("verify", "string", |config, node| {
        choice(node).map(|value| config.verify = value)
    }),
    Key::boolean("watch_config_files", |config| &mut config.watch_config_files),
    Key::boolean("webserver.enabled", |config| &mut config.webserver.enabled),
    Key::other("webserver.k8s_healthz_endpoint", "string", endpoint),
    Key::other("webserver.listen_address", "string", address),
    Key::other("webserver.listen_port", "integer", |config, node| {
        small(node).map(|port| config.webserver.port = port)
    }),
    Key::boolean("webserver.prometheus_metrics_enabled", |config| &mut config.webserver.metrics),
    Key::file("webserver.ssl_certificate", |config| &mut config.webserver.certificate),
    Key::boolean("webserver.ssl_enabled", |config| &mut config.webserver.tls),
];
