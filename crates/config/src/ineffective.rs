//! Falco settings that have no effect here, accepted so that Falco's configuration file can be
//! used.

use yaml::settings::{Entry, Node, Value};

/// A setting, or a group of settings, without effect.
pub(crate) struct IneffectiveSetting {
    /// Path of the setting. A group's path covers all settings below it.
    pub(crate) path: &'static str,
    /// Values that need no warning, because they ask for what happens anyway.
    harmless: &'static [&'static str],
    /// Reason for the missing effect, or an alternative.
    pub(crate) why: &'static str,
}

const fn key(
    path: &'static str,
    harmless: &'static [&'static str],
    why: &'static str,
) -> IneffectiveSetting {
    IneffectiveSetting {
        path,
        harmless,
        why,
    }
}

const CALLS: &str = "only calls that rules need are trapped; see `tollgate rules explain`";
const STATE: &str = "process state is read when a rule needs it, and its memory is bounded";
const RINGS: &str = "all CPUs share one ring of each kind";
const FAILED: &str = "failed calls are left out in the kernel if no rule can match them";
const DRIVER: &str = "this engine is not in Falco any more, nor here";
const METADATA: &str = "tollgate does not query the Kubernetes API";
const RUNTIMES: &str = "container runtimes are found by their state on disk";
const STATISTICS: &str = "tollgate does not collect these statistics";
const HOST_INFO: &str = "no plugin gets facts about this machine; those that make or parse system calls, which need them, are refused";
const PLUGIN_METRICS: &str = "plugins are not asked for metrics";

/// All settings without effect.
pub(crate) const INEFFECTIVE: &[IneffectiveSetting] = &[
    key("base_syscalls.all", &["false"], CALLS),
    key("base_syscalls.custom_set", &["[]"], CALLS),
    key("base_syscalls.repair", &["false"], CALLS),
    key(
        "buffer_format_base64",
        &["false"],
        "buffers are printed as text",
    ),
    key("container_engines", &[], RUNTIMES),
    key("engine.ebpf", &[], DRIVER),
    key(
        "engine.gvisor.root",
        &[],
        "containers are found in the state files of gVisor and other runtimes",
    ),
    key("engine.kmod.drop_failed_exit", &["false"], FAILED),
    key("engine.modern_ebpf.cpus_for_each_buffer", &["2"], RINGS),
    key(
        "engine.modern_ebpf.disable_iterators",
        &["true", "false"],
        "there are no iterators",
    ),
    key("engine.modern_ebpf.drop_failed_exit", &["false"], FAILED),
    key(
        "falco_libs.snaplen",
        &["0", "80"],
        "buffers have a fixed limit",
    ),
    key("falco_libs.thread_table_size", &["262144"], STATE),
    key(
        "falco_libs.thread_table_auto_purging_interval_s",
        &["300"],
        STATE,
    ),
    key(
        "falco_libs.thread_table_auto_purging_thread_timeout_s",
        &["300"],
        STATE,
    ),
    key(
        "libs_logger.enabled",
        &["true", "false"],
        "tollgate has no such log",
    ),
    key(
        "libs_logger.severity",
        &["info"],
        "tollgate has no such log",
    ),
    key("metadata_download", &[], METADATA),
    key("metrics.jemalloc_stats_enabled", &["false"], STATISTICS),
    key(
        "metrics.kernel_event_counters_per_cpu_enabled",
        &["false"],
        RINGS,
    ),
    key(
        "metrics.kernel_iter_event_counters_enabled",
        &["false"],
        "there are no iterators",
    ),
    key("metrics.libbpf_stats_enabled", &["false"], STATISTICS),
    key(
        "metrics.plugins_metrics_enabled",
        &["false"],
        PLUGIN_METRICS,
    ),
    key("modern_bpf.cpus_for_each_syscall_buffer", &["2"], RINGS),
    key("plugins_hostinfo", &["true", "false"], HOST_INFO),
    key(
        "syscall_buf_size_preset",
        &["4"],
        "set engine.modern_ebpf.buf_size_preset",
    ),
    key("syscall_drop_failed_exit", &["false"], FAILED),
    key(
        "syscall_event_drops.simulate_drops",
        &["false"],
        "no losses are pretended",
    ),
    key(
        "syscall_event_timeouts.max_consecutives",
        &["1000"],
        "no engine waits for events with a time limit",
    ),
    key("webserver.threadiness", &["0"], "one thread is enough"),
];

impl IneffectiveSetting {
    /// Returns true if a value asks for an effect that is missing.
    pub(crate) fn is_missed(&self, node: &Node) -> bool {
        let is_harmless = |text: &str| self.harmless.contains(&text);
        match &node.value {
            Value::Null => false,
            Value::Scalar { text, .. } => !is_harmless(text),
            Value::List(items) => {
                let mut names = items.iter().map(name);
                !names.all(|name| {
                    name.is_some_and(|name| is_harmless(&format!("[{name}]")) || is_harmless(name))
                })
            }
            // A disabled item needs no warning.
            Value::Map(entries) => {
                let enabled = entries.iter().find(|entry| entry.key == "enabled");
                !entries.is_empty() && enabled.is_none_or(|entry| entry.node.boolean() != Ok(false))
            }
        }
    }
}

/// Returns the name of a list item: `container`, or `{name: container, ..}`.
pub(crate) fn name(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar { text, .. } => Some(text),
        Value::Map(entries) => entries
            .iter()
            .find(|Entry { key, .. }| key == "name")
            .and_then(|entry| entry.node.text().ok()),
        Value::Null | Value::List(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yaml::settings;

    fn is_missed(path: &str, value: &str) -> bool {
        let key = INEFFECTIVE.iter().find(|key| key.path == path);
        let node = settings::read("c", value).expect("good YAML");
        key.expect("the table has it").is_missed(&node)
    }

    #[test]
    fn values_that_ask_for_nothing_are_not_missed() {
        for (path, value, missed) in [
            ("base_syscalls.all", "false", false),
            ("base_syscalls.all", "true", true),
            ("base_syscalls.custom_set", "[]", false),
            ("base_syscalls.custom_set", "[open]", true),
            ("falco_libs.snaplen", "512", true),
            ("engine.gvisor.root", "x", true),
            ("engine.ebpf", "{probe: x}", true),
            ("engine.ebpf", "{}", false),
            // What `true` gives to plugins in Falco only those use that are refused by name.
            ("plugins_hostinfo", "true", false),
            ("plugins_hostinfo", "false", false),
            ("plugins_hostinfo", "perhaps", true),
        ] {
            assert_eq!(is_missed(path, value), missed, "{path}: {value}");
        }
    }
}
