//! The command line of `tollgate node`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

const NODE: &str = "Node options";
const SERVER: &str = "API server";
const DETECTION: &str = "Detection";
const RUNTIME: &str = "Container runtime";

/// Sources of violations.
const VIOLATIONS: &str = "sources of violations";

/// `tollgate node`.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new(VIOLATIONS).multiple(true),
    after_help = "Without --server and --kubeconfig, the address, token and authority are those of the pod's service \
                  account. See docs/howto/deploy-on-kubernetes.md."
)]
pub(crate) struct Node {
    /// Name of the node [default: $NODE_NAME]
    #[arg(long, value_name = "NAME", help_heading = NODE)]
    pub(crate) name: Option<String>,
    /// Namespace of the installation [default: $POD_NAMESPACE]
    #[arg(long, value_name = "NAMESPACE", help_heading = NODE)]
    pub(crate) namespace: Option<String>,
    /// Folder for policies and containers that are known already
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tollgate/node", help_heading = NODE)]
    pub(crate) state: PathBuf,
    /// Serve /metrics and /healthz at this address
    #[arg(long, value_name = "IP:PORT", help_heading = NODE)]
    pub(crate) listen: Option<SocketAddr>,
    /// Watch the node by the engine ebpf, with the Rulesfiles and Configs of the installation's namespace
    #[arg(long, help_heading = DETECTION)]
    pub(crate) detect: bool,
    /// Leave the built-in rules out: load those of Rulesfiles alone
    #[arg(long, requires = "detect", help_heading = DETECTION)]
    pub(crate) no_builtin_rules: bool,
    /// Observe the containers of policies in the mode BehaviorModeling by the engine ebpf, and report what they do
    #[arg(long, help_heading = DETECTION)]
    pub(crate) behavior_modeling: bool,
    /// Write alerts, violations and policies that are not enforced as Events of their pods, at limited rates
    #[arg(long, help_heading = NODE)]
    pub(crate) events: bool,
    /// Follow violations in the alerts of `tollgate runtime`, JSON lines in FILE, such as /var/log/tollgate/alerts.jsonl
    #[arg(long, value_name = "FILE", group = VIOLATIONS, help_heading = NODE)]
    pub(crate) violations: Option<PathBuf>,
    /// Write them, and those of --bpf, to FILE in the form of vArmor's, such as /var/log/varmor/violations.log; rotated at 10 MiB, three older files
    #[arg(long, value_name = "FILE", requires = VIOLATIONS, help_heading = NODE)]
    pub(crate) violations_log: Option<PathBuf>,
    /// NRI socket of the container runtime
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/nri/nri.sock", help_heading = RUNTIME)]
    pub(crate) nri_socket: PathBuf,
    /// How long an answer to the container runtime may take, in milliseconds; a later one refuses the container
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=1500), help_heading = RUNTIME)]
    pub(crate) answer_within: u64,
    /// Handler of a RuntimeClass that runs `tollgate runtime`; repeatable
    #[arg(long = "runtime-handler", value_name = "NAME", help_heading = RUNTIME)]
    pub(crate) handlers: Vec<String>,
    /// Enforce what policies ask of BPF in the containers of every runtime, on nodes whose kernel can
    #[arg(long, group = VIOLATIONS, help_heading = RUNTIME)]
    pub(crate) bpf: bool,
    /// Folder in which `tollgate runtime` looks for policies
    #[arg(long, value_name = "DIR", default_value = "/etc/tollgate/policies", help_heading = RUNTIME)]
    pub(crate) policies: PathBuf,
    /// Folder in which `tollgate runtime` notes containers
    #[arg(long, value_name = "DIR", default_value = "/run/tollgate/runtime", help_heading = RUNTIME)]
    pub(crate) runtime_state: PathBuf,
    /// Address of the API server
    #[arg(long, value_name = "URL", help_heading = SERVER)]
    pub(crate) server: Option<String>,
    /// Certificates that may sign that of --server
    #[arg(long, value_name = "FILE", requires = "server", help_heading = SERVER)]
    pub(crate) certificate_authority: Option<PathBuf>,
    /// Token for --server
    #[arg(long, value_name = "FILE", requires = "server", help_heading = SERVER)]
    pub(crate) token: Option<PathBuf>,
    /// Certificate for --server
    #[arg(long, value_name = "FILE", requires_all = ["server", "client_key"], help_heading = SERVER)]
    pub(crate) client_certificate: Option<PathBuf>,
    /// Key of --client-certificate
    #[arg(long, value_name = "FILE", requires = "client_certificate", help_heading = SERVER)]
    pub(crate) client_key: Option<PathBuf>,
    /// Take server and credentials from the current context of this file
    #[arg(long, value_name = "FILE", conflicts_with = "server", help_heading = SERVER)]
    pub(crate) kubeconfig: Option<PathBuf>,
}
