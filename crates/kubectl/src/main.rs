//! The program `kubectl-tollgate`, which `kubectl tollgate` starts.
//!
//! It reads objects of the cluster with the rights of its user, and changes none.

mod alerts;
mod convert;
mod coverage;
mod explain;
mod output;
mod session;
mod state;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::output::Format;
use crate::session::{Failure, Session};

/// Shows what tollgate enforces in a Kubernetes cluster, and what it does not
#[derive(Debug, Parser)]
#[command(name = "kubectl-tollgate", bin_name = "kubectl tollgate", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show policies: whether they are enforced, and on how many containers
    Status {
        /// Show only these policies
        #[arg(value_name = "POLICY")]
        names: Vec<String>,
    },
    /// Show each policy on each node
    Coverage {
        /// Show only these nodes
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Show which policy each container of a pod has, how each rule is enforced, and what is not
    Explain {
        /// The pod
        pod: String,
        /// Handler of a RuntimeClass that is `tollgate runtime`; repeatable
        #[arg(long, value_name = "HANDLER", default_value = "tollgate")]
        runtime_handler: Vec<String>,
    },
    /// Convert policies of KubeArmor and the Security Profiles Operator, and models of vArmor, as `tollgate policy convert` does
    Convert {
        /// File to convert
        file: PathBuf,
        /// Leave RULE out, which cannot be carried over; repeatable
        #[arg(long = "accept-partial", value_name = "RULE")]
        accepted: Vec<String>,
    },
    /// Show refused containers, changes of policies, and what nodes do not enforce
    Alerts,
}

#[derive(Debug, Args)]
struct Options {
    /// Namespace [default: that of the context, or `default`]
    #[arg(short, long, global = true)]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, hide_default_value = true)]
    output: Format,
    /// Kubeconfig file [default: those of $KUBECONFIG, or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file [default: the current one]
    #[arg(long, global = true)]
    context: Option<String>,
    /// Namespace of tollgate's operator and agents
    #[arg(long, global = true, default_value = "tollgate")]
    installation: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kubectl-tollgate: {}", failure.text());
            if let Some(help) = failure.help() {
                eprintln!("help: {help}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Verb::Convert { file, accepted } = &arguments.verb {
        return convert::print(file, accepted);
    }
    let session = Session::open(&arguments.options)?;
    let shown = match &arguments.verb {
        Verb::Status { names } => status::show(&session, names)?,
        Verb::Coverage { nodes } => coverage::show(&session, nodes)?,
        Verb::Explain {
            pod,
            runtime_handler,
        } => explain::show(&session, pod, runtime_handler)?,
        Verb::Alerts | Verb::Convert { .. } => alerts::show(&session)?,
    };
    output::print(&shown, arguments.options.output)
}
