//! Table of the settings that have an effect.

use std::sync::LazyLock;

use outputs::Outputs;
use yaml::key::Key;
use yaml::settings::{Node, Problem};

use super::append::append_output;
use super::choice::choice;
use super::model::Config;
use super::values::{
    address, buffer, capture_mode, drop_actions, drop_threshold, endpoint, engine_kind, interval,
    log_level, priority, queue_capacity, rule_matching, rules_files, rules_level, selections,
};
use super::{plugins, responses};

/// A setting.
pub(crate) struct Setting {
    /// Path of the setting, as in Falco's configuration.
    pub(crate) path: &'static str,
    /// JSON type of its values.
    pub(crate) json_type: &'static str,
    owner: Owner,
}

/// Table that describes a setting.
enum Owner {
    /// The table in this module.
    Config(&'static Key<Config>),
    /// The table of an output.
    Outputs,
}

impl Setting {
    /// Sets the value in the configuration.
    pub(crate) fn set(&self, config: &mut Config, node: &Node) -> Result<(), Problem> {
        match self.owner {
            Owner::Config(key) => key.set(config, node),
            Owner::Outputs => config.outputs.set(self.path, node),
        }
    }
}

/// All settings with an effect, outputs included, sorted by path.
pub(crate) static KEYS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let own = TABLE
        .iter()
        .chain(responses::KEYS)
        .chain(plugins::KEYS)
        .map(|key| Setting {
            path: key.path,
            json_type: key.json_type(),
            owner: Owner::Config(key),
        });
    let of_outputs = Outputs::keys().map(|(path, json_type)| Setting {
        path,
        json_type,
        owner: Owner::Outputs,
    });
    let mut all: Vec<_> = own.chain(of_outputs).collect();
    all.sort_by_key(|setting| setting.path);
    all
});

/// Settings that belong to no output. Names and meanings are Falco's; `io_uring`, `runtime` and
/// `verify` are not in Falco.
#[rustfmt::skip]
const TABLE: &[Key<Config>] = &[
    Key::other("append_output", "array", append_output),
    Key::boolean("buffered_outputs", |config| &mut config.buffered_outputs),
    Key::integer("capture.default_duration", |config| &mut config.capture.default_duration_ms),
    Key::boolean("capture.enabled", |config| &mut config.capture.enabled),
    Key::integer("capture.max_file_size_mb", |config| &mut config.capture.max_file_size_mb),
    Key::other("capture.mode", "string", capture_mode),
    Key::text("capture.path_prefix", |config| &mut config.capture.path_prefix),
    // Applied before settings are read.
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
    Key::text("grpc.bind_address", |config| &mut config.grpc.bind_address),
    Key::file("grpc.cert_chain", |config| &mut config.grpc.cert_chain),
    Key::boolean("grpc.enabled", |config| &mut config.grpc.enabled),
    Key::file("grpc.private_key", |config| &mut config.grpc.private_key),
    Key::file("grpc.root_certs", |config| &mut config.grpc.root_certs),
    Key::other("grpc.threadiness", "integer", |config, node| {
        node.small().map(|threads| config.grpc.threadiness = threads)
    }),
    Key::boolean("grpc_output.enabled", |config| &mut config.grpc.output),
    Key::other("io_uring", "string", |config, node| {
        choice(node).map(|value| config.io_uring = value)
    }),
    Key::boolean("json_include_ids_property", |config| &mut config.json_parts.ids),
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
        node.small().map(|burst| config.throttle.max_burst = burst)
    }),
    Key::number("outputs.rate", |config| &mut config.throttle.per_second),
    Key::other("outputs_queue.capacity", "integer", queue_capacity),
    Key::other("priority", "string", |config, node| {
        priority(node).map(|least| config.priority = least)
    }),
    Key::other("rule_matching", "string", rule_matching),
    Key::other("rules", "array", selections),
    // The name before Falco 0.38.
    Key::other("rules_file", "array", rules_files),
    Key::other("rules_files", "array", rules_files),
    Key::other("rules_level", "string", rules_level),
    Key::texts("runtime.accept_partial", |config| &mut config.runtime.accept_partial),
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
    Key::texts_by_name("static_fields", |config| &mut config.static_fields),
    Key::other("syscall_event_drops.actions", "array", drop_actions),
    Key::other(
        "syscall_event_drops.max_burst",
        "integer",
        |config, node| node.small().map(|burst| config.drops.rate.max_burst = burst),
    ),
    Key::number("syscall_event_drops.rate", |config| {
        &mut config.drops.rate.per_second
    }),
    Key::other("syscall_event_drops.threshold", "number", drop_threshold),
    Key::boolean("time_format_iso_8601", |config| &mut config.time_format_iso_8601),
    Key::boolean("tollgate_internal", |config| &mut config.tollgate_internal),
    Key::other("verify", "string", |config, node| {
        choice(node).map(|value| config.verify = value)
    }),
    Key::boolean("watch_config_files", |config| &mut config.watch_config_files),
    Key::boolean("webserver.enabled", |config| &mut config.webserver.enabled),
    Key::other("webserver.k8s_healthz_endpoint", "string", endpoint),
    Key::other("webserver.listen_address", "string", address),
    Key::other("webserver.listen_port", "integer", |config, node| {
        node.small().map(|port| config.webserver.port = port)
    }),
    Key::boolean("webserver.prometheus_metrics_enabled", |config| &mut config.webserver.metrics),
    Key::file("webserver.ssl_certificate", |config| &mut config.webserver.certificate),
    Key::boolean("webserver.ssl_enabled", |config| &mut config.webserver.tls),
];
